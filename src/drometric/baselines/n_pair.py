"""The N-pair loss."""

from __future__ import annotations

from torch import Tensor

from drometric.baselines.per_anchor import log_sum_exp
from drometric.engine.batch import Batch
from drometric.engine.pairwise_loss import PairwiseLoss
from drometric.engine.solution import Solution, differentiate
from drometric.mining.mined import counts


class NPair(PairwiseLoss):
    """The N-pair loss (Sohn 2016): `log(1 + Σ_{n in N_a} e^{s_an - s_ap})`.

    Averaged over the ordered positive pairs (a, p); 0 where there are none. An anchor without
    negatives gives 0.

    Args:
        normalize: L2-normalise the embeddings first.
    """

    def solve(self, batch: Batch) -> Solution:
        anchor, other = batch.positive.nonzero(as_tuple=True)
        negative = counts(batch.negative)[anchor]

        def objective(s: Tensor) -> Tensor:
            relative = s[anchor] - s[anchor, other][:, None]
            return log_sum_exp(relative, negative, plus_one=True).sum() / max(len(anchor), 1)

        return differentiate(batch, objective)
