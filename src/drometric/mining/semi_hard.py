"""Semi-hard negatives for pair losses: those inside the margin but on the right side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from drometric.checks import number, whole
from drometric.engine.batch import Batch
from drometric.mining.mined import Mined, counts, draw_counts
from drometric.uncertainty.draw import check_generator


@dataclass(frozen=True)
class SemiHard:
    """All positives, and the negatives with `λ - m < s < λ`.

    Semi-hard mining (Schroff et al. 2015) is made for triplets; a pair has no positive to
    compare with, so λ stands in for it, as in the paper's experiments.

    Args:
        margin: m, the width of the band.
        threshold: λ, its upper end.
        per_positive: None takes all negatives of the band; a number draws as many, with
            replacement, for each of the anchor's positives (none where the band is empty). With
            1 about as many pairs are kept as in the paper.
        generator: what the draws come from; None is torch's default one, of the CPU.
    """

    by_anchor: ClassVar[bool] = True

    margin: float = 0.2
    threshold: float = 0.5
    per_positive: int | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        number("margin", self.margin, above=0.0)
        number("threshold", self.threshold)
        if self.per_positive is not None:
            whole("per_positive", self.per_positive)
        check_generator(self.generator)

    def mine(self, batch: Batch) -> Mined:
        s = batch.similarity
        inside = (s > self.threshold - self.margin) & (s < self.threshold)
        band = counts(batch.negative & inside)
        if self.per_positive is None:
            return Mined(counts(batch.positive), band)
        draws = batch.positive.sum(1) * self.per_positive
        return Mined(counts(batch.positive), draw_counts(band, draws, self.generator))
