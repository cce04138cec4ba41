"""The multi-similarity loss."""

from __future__ import annotations

from drometric.baselines.per_anchor import (
    Reduction,
    check_reduction,
    log_sum_exp,
    reduce,
    softplus,
)
from drometric.baselines.soft_maxima import SoftMaximaLoss
from drometric.checks import number
from drometric.engine.anchors import Anchors
from drometric.engine.batch import Batch
from drometric.engine.dense_anchors import DenseAnchors
from drometric.engine.outcome import Outcome
from drometric.engine.per_anchor import multi_similarity
from drometric.engine.share import Share
from drometric.engine.tile_losses import Linear
from drometric.mining.mined import Miner, check_miner, mined_pairs


class MultiSimilarity(SoftMaximaLoss):
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

    slack = True

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

    def share(self, strip: Batch) -> Share:
        positive, negative = mined_pairs(self.miner, strip)
        excess = strip.similarity - self.threshold
        of_positives, p = log_sum_exp(-self.alpha * excess, positive)
        of_negatives, q = log_sum_exp(self.beta * excess, negative)
        (of_positives, fall), (of_negatives, rise) = softplus(of_positives), softplus(of_negatives)
        per_anchor = of_positives / self.alpha + of_negatives / self.beta
        slope = q.mul_(rise[:, None]).sub_(p.mul_(fall[:, None]))
        return reduce(per_anchor, slope, self.reduction)

    def pair_loss_and_gammas(self) -> tuple[Linear, dict[bool, float]]:
        return Linear(self.threshold), {True: 1 / self.alpha, False: 1 / self.beta}

    def from_anchors(self, anchors: Anchors | DenseAnchors) -> Outcome:
        mean = self.reduction == "mean"
        return multi_similarity(anchors, mean=mean)
