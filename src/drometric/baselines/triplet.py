"""The triplet loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from drometric.baselines.per_anchor import reduce
from drometric.checks import number, one_of
from drometric.engine.batch import Batch
from drometric.engine.pairwise_loss import PairwiseLoss
from drometric.engine.solution import Solution, differentiate, from_slope

TRIPLETS_AT_ONCE = 2**22

Triplets = Literal["all", "hard", "semi-hard", "hardest"]


class Triplet(PairwiseLoss):
    """The triplet loss (Schroff et al. 2015) in similarities: `[s_an - s_ap + margin]+`.

    Which triplets (anchor, positive, negative) it averages over:

    - "all": every one, those with zero loss included;
    - "hard": those whose negative is nearer than the positive, `s_an > s_ap`;
    - "semi-hard": those whose negative is farther but inside the margin,
      `s_ap - margin < s_an < s_ap`;
    - "hardest": batch-hard (Hermans et al. 2017), eq. (29): each anchor's hardest positive with
      its hardest negative, summed over the anchors that have both and divided by B. Of equally
      hard ones each takes an equal share of the slope.

    No such triplet gives 0.

    Args:
        margin: how much less similar a negative should be than a positive.
        triplets: "all", "hard", "semi-hard" or "hardest".
        normalize: L2-normalise the embeddings first.
    """

    def __init__(
        self, margin: float = 0.1, triplets: Triplets = "all", *, normalize: bool = True
    ) -> None:
        super().__init__(normalize=normalize)
        self.margin = number("margin", margin)
        self.triplets = one_of("triplets", triplets, ("all", "hard", "semi-hard", "hardest"))

    def solve(self, batch: Batch) -> Solution:
        if self.triplets == "hardest":
            return differentiate(batch, lambda s: self._hardest(s, batch))
        return self._mean(batch)

    def _mean(self, batch: Batch) -> Solution:
        s = batch.similarity
        value, count, slope = s.new_zeros(()), s.new_zeros(()), torch.zeros_like(s)
        # Some ordered positive pairs at a time, each with all negatives of its anchor.
        at_once = max(1, TRIPLETS_AT_ONCE // max(s.shape[1], 1))
        for pairs in torch.split(batch.positive.nonzero(), at_once):
            anchor, other = pairs.unbind(1)
            relative = s[anchor] - s[anchor, other][:, None]
            chosen = batch.negative[anchor]
            if self.triplets == "hard":
                chosen = chosen & (relative > 0)
            elif self.triplets == "semi-hard":
                chosen = chosen & (relative < 0) & (relative > -self.margin)
            active = chosen & (relative + self.margin > 0)
            value += torch.where(active, relative + self.margin, 0.0).sum()
            count += chosen.sum()
            slope.index_add_(0, anchor, active.to(slope))
            slope[anchor, other] -= active.sum(1)
        count = count.clamp(min=1)
        return from_slope(batch, value / count, slope / count)

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
