"""Distance-weighted sampling: negatives spread evenly over distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from drometric.checks import number
from drometric.engine.batch import Batch
from drometric.mining.mined import Mined, counts, draw_counts
from drometric.uncertainty.draw import check_generator


@dataclass(frozen=True)
class DistanceWeighted:
    """All positives, and as many negatives of each anchor, drawn by the inverse density.

    Points spread evenly on the unit sphere in d dimensions lie at distance D from each other with
    density `q(D) ∝ D^{d-2} (1 - D²/4)^{(d-3)/2}`. Negatives are drawn with weight 1/q(D), with
    replacement, so that all distances are seen (DWS; Wu et al. 2017). It needs normalised
    embeddings with d ≥ 2.

    Args:
        cutoff: smaller distances weigh as this one does, so that noise is not drawn above all.
        nonzero_loss_cutoff: no negatives from this distance on. Where all of an anchor's
            negatives are that far, none is drawn.
        generator: what the draws come from; None is torch's default one, of the CPU.
    """

    by_anchor: ClassVar[bool] = True

    cutoff: float = 0.5
    nonzero_loss_cutoff: float = 1.4
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        number("cutoff", self.cutoff, above=0.0)
        number("nonzero_loss_cutoff", self.nonzero_loss_cutoff, above=0.0)
        check_generator(self.generator)

    def mine(self, batch: Batch) -> Mined:
        dimension = batch.rows.vector.shape[1]
        if dimension < 2 or not batch.rows.normalized:
            raise ValueError(
                "embeddings must be normalised and have at least 2 columns for DistanceWeighted; "
                f"got d = {dimension}, normalize={batch.rows.normalized}"
            )
        positive = counts(batch.positive)
        if not batch.similarity.numel():
            return Mined(positive, counts(batch.negative))
        distance = batch.squared_distance.sqrt()
        eligible = batch.negative & (distance < self.nonzero_loss_cutoff)
        distance = distance.clamp(min=self.cutoff)
        log_density = (dimension - 2) * distance.log()
        # At D = 2 the density is 0, its inverse infinite: stop short of it.
        log_density += (dimension - 3) / 2 * (1 - distance.square() / 4).clamp(min=1e-8).log()
        log_weight = (-log_density).masked_fill(~eligible, -torch.inf)
        top = log_weight.amax(1, keepdim=True)
        weight = torch.where(eligible, (log_weight - top).exp(), 0.0)
        draws = batch.positive.sum(1)
        return Mined(positive, draw_counts(weight, draws, self.generator))
