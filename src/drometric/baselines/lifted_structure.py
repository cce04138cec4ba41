"""The lifted-structure loss."""

from __future__ import annotations

from torch import Tensor

from drometric.baselines.per_anchor import Reduction, check_reduction, log_sum_exp, reduce
from drometric.checks import number
from drometric.engine.batch import Batch
from drometric.engine.pairwise_loss import PairwiseLoss
from drometric.engine.solution import Solution, differentiate
from drometric.mining.mined import Miner, check_miner, mined_pairs


class LiftedStructure(PairwiseLoss):
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

    def solve(self, batch: Batch) -> Solution:
        positive, negative = mined_pairs(self.miner, batch)
        both = (positive > 0).any(1) & (negative > 0).any(1)

        def objective(s: Tensor) -> Tensor:
            of_positives = log_sum_exp(self.margin - s[both], positive[both])
            of_negatives = log_sum_exp(s[both], negative[both])
            return reduce((of_positives + of_negatives).relu(), self.reduction, len(s))

        return differentiate(batch, objective)
