"""The hard-aware point-to-set loss."""

from __future__ import annotations

from typing import Literal

import torch

from drometric.baselines.per_anchor import Reduction, check_reduction, hinges
from drometric.checks import number, one_of
from drometric.engine.anchor_loss import AnchorLoss
from drometric.engine.batch import Batch
from drometric.engine.share import Share
from drometric.uncertainty.soft_maximum import soft_maximum


class HAP2S(AnchorLoss):
    """The hard-aware point-to-set loss (Yu et al. 2018), eq. (30), in similarities:

    `(1/B) Σ_i [S_i⁻ - S_i⁺ + margin]+`, `S_i = Σ q s / Σ q` over the anchor's negatives or its
    positives, over the anchors that have both; the others count as 0. The weights q are held
    constant in the gradient. They are

    - "exponential" (HAP2S_E): `e^{-s/γ}` for positives, `e^{s/γ}` for negatives, of the
      similarity s, eq. (32), where the original has distances;
    - "polynomial" (HAP2S_P, not in the paper): `(d + 1)^10` for positives, `(d + 1)^-20` for
      negatives, of the Euclidean distance d; the loss itself stays in similarities.

    Args:
        gamma: γ, how sharply the exponential weights single out the hardest; above 0.
        margin: how much less similar the negatives should be.
        weighting: "exponential" or "polynomial".
        reduction: "mean" over all B anchors, or "sum".
        normalize: L2-normalise the embeddings first.
    """

    def __init__(
        self,
        gamma: float = 0.1,
        margin: float = 0.1,
        weighting: Literal["exponential", "polynomial"] = "exponential",
        *,
        reduction: Reduction = "mean",
        normalize: bool = True,
    ) -> None:
        super().__init__(normalize=normalize)
        self.gamma = number("gamma", gamma, above=0.0)
        self.margin = number("margin", margin)
        self.weighting = one_of("weighting", weighting, ("exponential", "polynomial"))
        self.reduction = check_reduction(reduction)

    def share(self, strip: Batch) -> Share:
        s, positive, negative = strip.similarity, strip.positive, strip.negative
        if self.weighting == "exponential":
            of_positives, of_negatives, gamma = -s, s, self.gamma
        else:
            log_distance = strip.squared_distance.sqrt().log1p()
            of_positives, of_negatives, gamma = 10 * log_distance, -20 * log_distance, 1.0
        strength = torch.tensor([gamma], dtype=s.dtype, device=s.device)
        _, q_positive = soft_maximum(of_positives, strength, positive)
        _, q_negative = soft_maximum(of_negatives, strength, negative)
        q = q_negative - q_positive
        excess = (q * s).sum(1) + self.margin
        both = positive.any(1) & negative.any(1)
        return hinges(torch.where(both, excess, 0.0), q, self.reduction)
