"""The N-pair loss."""

from __future__ import annotations

from drometric.baselines.per_anchor import log_sum_exp, softplus
from drometric.engine.anchor_loss import AnchorLoss
from drometric.engine.batch import Batch
from drometric.engine.share import Share


class NPair(AnchorLoss):
    """The N-pair loss (Sohn 2016): `log(1 + Σ_{n in N_a} e^{s_an - s_ap})`.

    Averaged over the ordered positive pairs (a, p); 0 where there are none. An anchor without
    negatives gives 0.

    Args:
        normalize: L2-normalise the embeddings first.
    """

    def share(self, strip: Batch) -> Share:
        s, positive = strip.similarity, strip.positive
        # log(1 + Σ e^{s_an - s_ap}) with the sum over n taken once for each anchor.
        of_negatives, q = log_sum_exp(s, strip.negative)
        loss, rise = softplus(of_negatives[:, None] - s)
        rise = rise.masked_fill_(~positive, 0.0)
        slope = q.mul_(rise.sum(1, keepdim=True)).sub_(rise)
        return Share(loss.masked_fill_(~positive, 0.0).sum(), positive.sum(), slope)
