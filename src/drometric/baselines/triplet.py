"""The triplet loss."""

from __future__ import annotations

import torch
from torch import Tensor

from drometric.baselines.per_anchor import reduce
from drometric.checks import number, one_of
from drometric.engine.batch import Batch
from drometric.engine.pairwise_loss import PairwiseLoss
from drometric.engine.solution import Solution, differentiate


class Triplet(PairwiseLoss):
    """The triplet loss (Schroff et al. 2015) in similarities: `[s_an - s_ap + margin]+`.

    Which triplets (anchor, positive, negative) it averages over:

    - "all": every one, those with zero loss included;
    - "hard": those whose negative is nearer than the positive, `s_an > s_ap`;
    - "semi-hard": those whose negative is farther but inside the margin,
      `s_ap - margin < s_an < s_ap`;
    - "hardest": batch-hard (Hermans et al. 2017), eq. (BH): each anchor's hardest positive with
      its hardest negative, summed over the anchors that have both and divided by B. Of equally
      hard ones each takes an equal share of the slope.

    No such triplet gives 0.

    Args:
        margin: how much less similar a negative should be than a positive.
        triplets: "all", "hard", "semi-hard" or "hardest".
        normalize: L2-normalise the embeddings first.
    """

    def __init__(
        self, margin: float = 0.1, triplets: str = "all", *, normalize: bool = True
    ) -> None:
        super().__init__(normalize=normalize)
        self.margin = number("margin", margin)
        self.triplets = one_of("triplets", triplets, ("all", "hard", "semi-hard", "hardest"))

    def solve(self, batch: Batch) -> Solution:
        if self.triplets == "hardest":
            return differentiate(batch, lambda s: self._hardest(s, batch))
        return differentiate(batch, lambda s: self._mean(s, batch))

    def _mean(self, s: Tensor, batch: Batch) -> Tensor:
        anchor, other = batch.positive.nonzero(as_tuple=True)
        relative = s[anchor] - s[anchor, other][:, None]
        chosen = batch.negative[anchor]
        if self.triplets == "hard":
            chosen = chosen & (relative > 0)
        elif self.triplets == "semi-hard":
            chosen = chosen & (relative < 0) & (relative > -self.margin)
        loss = torch.where(chosen, relative + self.margin, 0.0).relu()
        return loss.sum() / chosen.sum().clamp(min=1)

    def _hardest(self, s: Tensor, batch: Batch) -> Tensor:
        both = batch.positive.any(1) & batch.negative.any(1)
        if not bool(both.any()):
            return s.sum() * 0
        positive, negative = batch.positive[both], batch.negative[both]
        excess = (
            s[both].masked_fill(~negative, -torch.inf).amax(1)
            - s[both].masked_fill(~positive, torch.inf).amin(1)
            + self.margin
        )
        return reduce(excess.relu(), "mean", len(s))
