"""PerAnchorKL from exact similarities, some anchors at a time: for any γ there may be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from drometric.engine.batch import Batch
from drometric.engine.problem import Problem
from drometric.engine.share import Share
from drometric.pair_losses import evaluate
from drometric.uncertainty.per_anchor_kl import of_anchors
from drometric.uncertainty.soft_maximum import soft_maximum


@dataclass(frozen=True, eq=False)
class AnchorShares:
    """What every anchor adds to the robust loss of `PerAnchorKL`."""

    problem: Problem
    anchors: int
    normalize: bool
    by_anchor = True

    def share(self, strip: Batch) -> Share:
        """The share of the strip's anchors."""
        uncertainty, total = self.problem.uncertainty, strip.similarity.new_zeros(())
        weighted = torch.zeros_like(strip.similarity)
        for name, mask in (("gamma_positive", strip.positive), ("gamma_negative", strip.negative)):
            similarity = strip.similarity[mask]
            positive = torch.full_like(similarity, mask is strip.positive, dtype=torch.bool)
            loss, slope = torch.zeros_like(weighted), torch.zeros_like(weighted)
            loss[mask], slope[mask] = evaluate(self.problem.pair_loss, similarity, positive)
            counted = mask & (loss > 0) if self.problem.drop else mask
            gamma = of_anchors(name, getattr(uncertainty, name), self.anchors, loss)
            if len(gamma) > 1:
                gamma = gamma[strip.first_row : strip.first_row + len(loss)]
            values, p = soft_maximum(loss, gamma, counted, slack=uncertainty.slack)
            total = total + values.sum()
            weighted += p.mul_(slope)
        return Share(total, len(weighted) if uncertainty.reduction == "mean" else 0, weighted)
