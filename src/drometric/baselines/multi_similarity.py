"""The multi-similarity loss."""

from __future__ import annotations

from torch import Tensor

from drometric.baselines.per_anchor import Reduction, check_reduction, log_sum_exp, reduce
from drometric.checks import number
from drometric.engine.batch import Batch
from drometric.engine.pairwise_loss import PairwiseLoss
from drometric.engine.solution import Solution, differentiate
from drometric.mining.mined import Miner, check_miner, mined_pairs


class MultiSimilarity(PairwiseLoss):
    """The multi-similarity loss (MS; Wang et al. 2019), eq. (2):

    `(1/B) Σ_i {(1/α) log[1 + Σ_{P_i} e^{-α(s-λ)}] + (1/β) log[1 + Σ_{N_i} e^{β(s-λ)}]}`

    An empty group gives 0. As its authors publish it, with their mining, it is
    `MultiSimilarity(miner=MultiSimilarityMiner())`.

    Args:
        alpha: α, how sharply an anchor's hardest positives are singled out.
        beta: β, the same for negatives.
        threshold: λ.
        miner: which ordered pairs are summed over, with multiplicity; None is all of them.
        reduction: "mean" over all B anchors, or "sum".
        normalize: L2-normalise the embeddings first.
    """

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        threshold: float = 0.5,
        miner: Miner | None = None,
        *,
        reduction: Reduction = "mean",
        normalize: bool = True,
    ) -> None:
        super().__init__(normalize=normalize)
        check_miner(miner, optional=True)
        self.alpha = number("alpha", alpha, above=0.0)
        self.beta = number("beta", beta, above=0.0)
        self.threshold = number("threshold", threshold)
        self.miner = miner
        self.reduction = check_reduction(reduction)

    def solve(self, batch: Batch) -> Solution:
        positive, negative = mined_pairs(self.miner, batch)

        def objective(s: Tensor) -> Tensor:
            excess = s - self.threshold
            of_positives = log_sum_exp(-self.alpha * excess, positive, plus_one=True)
            of_negatives = log_sum_exp(self.beta * excess, negative, plus_one=True)
            per_anchor = of_positives / self.alpha + of_negatives / self.beta
            return reduce(per_anchor, self.reduction, len(s))

        return differentiate(batch, objective)
