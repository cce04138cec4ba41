"""The hard-aware point-to-set loss."""

from __future__ import annotations

import torch
from torch import Tensor

from drometric.baselines.per_anchor import check_reduction, reduce
from drometric.checks import number, one_of
from drometric.engine.batch import Batch
from drometric.engine.pairwise_loss import PairwiseLoss
from drometric.engine.solution import Solution, differentiate


class HAP2S(PairwiseLoss):
    """The hard-aware point-to-set loss (Yu et al. 2018), eq. (HAP2S), in similarities:

    `(1/B) Σ_i [S_i⁻ - S_i⁺ + margin]+`, `S_i = Σ q s / Σ q` over the anchor's negatives or its
    positives, over the anchors that have both; the others count as 0. The weights q are held
    constant in the gradient. They are

    - "exponential" (HAP2S_E): `e^{-s/γ}` for positives, `e^{s/γ}` for negatives;
    - "polynomial" (HAP2S_P): `(d + 1)^10` for positives, `(d + 1)^-20` for negatives, of the
      Euclidean distance d.

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
        weighting: str = "exponential",
        *,
        reduction: str = "mean",
        normalize: bool = True,
    ) -> None:
        super().__init__(normalize=normalize)
        self.gamma = number("gamma", gamma, above=0.0)
        self.margin = number("margin", margin)
        self.weighting = one_of("weighting", weighting, ("exponential", "polynomial"))
        self.reduction = check_reduction(reduction)

    def solve(self, batch: Batch) -> Solution:
        both = batch.positive.any(1) & batch.negative.any(1)
        hardness = self._log_weights(batch)
        q_positive = _softmax(hardness[0], batch.positive)
        q_negative = _softmax(hardness[1], batch.negative)

        def objective(s: Tensor) -> Tensor:
            excess = ((q_negative - q_positive) * s)[both].sum(1) + self.margin
            return reduce(excess.relu(), self.reduction, len(s))

        return differentiate(batch, objective)

    def _log_weights(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.weighting == "exponential":
            return -batch.similarity / self.gamma, batch.similarity / self.gamma
        log_distance = batch.squared_distance.sqrt().log1p()
        return 10 * log_distance, -20 * log_distance

    def extra_repr(self) -> str:
        return (
            f"gamma={self.gamma}, margin={self.margin}, weighting={self.weighting!r}, "
            f"reduction={self.reduction!r}"
        )


def _softmax(exponent: Tensor, mask: Tensor) -> Tensor:
    """e^exponent over each row's mask, summing up to 1; zeros for an empty row."""
    return exponent.masked_fill(~mask, -torch.inf).softmax(1).nan_to_num(0.0)
