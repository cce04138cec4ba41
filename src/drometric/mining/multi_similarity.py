"""The mining of the multi-similarity loss: pairs harder than an anchor's hardest opposite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from drometric.checks import number
from drometric.engine.batch import Batch
from drometric.mining.mined import Mined, counts


@dataclass(frozen=True)
class MultiSimilarityMiner:
    """Per anchor, negatives with `s > min s_pos - ε` and positives with `s < max s_neg + ε`.

    (Wang et al. 2019.) An anchor without pairs of one sign keeps none of the other.

    Args:
        epsilon: ε, how much easier than the hardest opposite a pair may be.
    """

    by_anchor: ClassVar[bool] = True

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon)

    def mine(self, batch: Batch) -> Mined:
        s, inf = batch.similarity, torch.inf
        if not s.shape[1]:
            return Mined(counts(batch.positive), counts(batch.negative))
        least_similar = s.masked_fill(~batch.positive, inf).amin(1, keepdim=True)
        most_similar = s.masked_fill(~batch.negative, -inf).amax(1, keepdim=True)
        return Mined(
            counts(batch.positive & (s < most_similar + self.epsilon)),
            counts(batch.negative & (s > least_similar - self.epsilon)),
        )
