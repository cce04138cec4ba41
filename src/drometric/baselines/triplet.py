"""The triplet loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from drometric.baselines.per_anchor import hinges
from drometric.checks import number, one_of
from drometric.engine.anchor_loss import AnchorLoss
from drometric.engine.batch import Batch
from drometric.engine.share import Share

TRIPLETS_AT_ONCE = 2**22

Triplets = Literal["all", "hard", "semi-hard", "hardest"]


class Triplet(AnchorLoss):
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

    def share(self, strip: Batch) -> Share:
        return self._hardest(strip) if self.triplets == "hardest" else self._chosen(strip)

    def _chosen(self, strip: Batch) -> Share:
        s = strip.similarity
        total, count, slope = s.new_zeros(()), s.new_zeros(()), torch.zeros_like(s)
        # Some ordered positive pairs at a time, each with all negatives of its anchor.
        at_once = max(1, TRIPLETS_AT_ONCE // max(s.shape[1], 1))
        for pairs in torch.split(strip.positive.nonzero(), at_once):
            anchor, other = pairs.unbind(1)
            relative = s[anchor] - s[anchor, other][:, None]
            chosen = strip.negative[anchor]
            if self.triplets == "hard":
                chosen = chosen & (relative > 0)
            elif self.triplets == "semi-hard":
                chosen = chosen & (relative < 0) & (relative > -self.margin)
            active = chosen & (relative + self.margin > 0)
            total += torch.where(active, relative + self.margin, 0.0).sum()
            count += chosen.sum()
            slope.index_add_(0, anchor, active.to(slope))
            slope[anchor, other] -= active.sum(1)
        return Share(total, count, slope)

    def _hardest(self, strip: Batch) -> Share:
        s = strip.similarity
        if not s.numel():
            return hinges(s.sum(1), s, "mean")
        # An anchor that lacks one of the signs has an excess of -∞.
        of_negatives = s.masked_fill(~strip.negative, -torch.inf)
        of_positives = s.masked_fill(~strip.positive, torch.inf)
        highest, lowest = of_negatives.amax(1, keepdim=True), of_positives.amin(1, keepdim=True)
        slope = _evenly(of_negatives == highest) - _evenly(of_positives == lowest)
        return hinges((highest - lowest)[:, 0] + self.margin, slope, "mean")


def _evenly(mask: Tensor) -> Tensor:
    """Weights of the sum 1 for each row, as many as are True in it."""
    return mask / mask.sum(1, keepdim=True, dtype=torch.float64)
