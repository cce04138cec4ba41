"""The lifted-structure loss."""

from __future__ import annotations

from drometric.baselines.per_anchor import Reduction, check_reduction, hinges, log_sum_exp
from drometric.baselines.soft_maxima import SoftMaximaLoss
from drometric.checks import number
from drometric.engine.anchors import Anchors
from drometric.engine.batch import Batch
from drometric.engine.dense_anchors import DenseAnchors
from drometric.engine.outcome import Outcome
from drometric.engine.per_anchor import lifted_structure
from drometric.engine.share import Share
from drometric.engine.tile_losses import Linear
from drometric.mining.mined import Miner, check_miner, mined_pairs


class LiftedStructure(SoftMaximaLoss):
    """The lifted-structure loss (LS; Oh Song et al. 2016) in similarities:

    `(1/B) Σ_i [log Σ_{P_i} e^{margin - s} + log Σ_{N_i} e^{s}]+`

    over the anchors that have positives and negatives; the others count as 0. In the paper's
    eq. (3) the λ of the two sums cancels; the margin stands for what was meant.

    Args:
        margin: how much less similar all negatives should be than the positives.
        miner: which ordered pairs are summed over, with multiplicity; None is all of them.
        reduction: "mean" over all B anchors, or "sum", as the paper prints it.
        normalize: L2-normalise the embeddings first.
    """

    slack = False

    def __init__(
        self,
        margin: float = 1.0,
        miner: Miner | None = None,
        *,
        reduction: Reduction = "mean",
        normalize: bool = True,
    ) -> None:
        super().__init__(normalize=normalize)
        check_miner(miner, optional=True)
        self.margin = number("margin", margin)
        self.miner = miner
        self.reduction = check_reduction(reduction)

    def share(self, strip: Batch) -> Share:
        positive, negative = mined_pairs(self.miner, strip)
        s = strip.similarity
        # -∞ for an anchor that lacks one of the signs.
        of_positives, p = log_sum_exp(self.margin - s, positive)
        of_negatives, q = log_sum_exp(s, negative)
        return hinges(of_positives + of_negatives, q.sub_(p), self.reduction)

    def pair_loss_and_gammas(self) -> tuple[Linear, dict[bool, float]]:
        return Linear(0.0), {True: 1.0, False: 1.0}

    def from_anchors(self, anchors: Anchors | DenseAnchors) -> Outcome:
        mean = self.reduction == "mean"
        return lifted_structure(anchors, self.margin, mean=mean)
