"""The N-pair loss."""

from __future__ import annotations

import torch
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
        both = batch.positive.any(1) & batch.negative.any(1)
        positive, negative = batch.positive[both], counts(batch.negative[both])
        terms = batch.positive.sum().clamp(min=1)

        def objective(s: Tensor) -> Tensor:
            # log(1 + Σ e^{s_an - s_ap}) with the sum over n taken once for each anchor.
            relative = log_sum_exp(s[both], negative)[:, None] - s[both]
            loss = torch.logaddexp(relative, torch.zeros_like(relative))
            return torch.where(positive, loss, 0.0).sum() / terms

        return differentiate(batch, objective)
