"""A pair loss, averaged over the pairs that a miner chooses."""

from __future__ import annotations

import torch

from drometric.engine.anchor_loss import AnchorLoss
from drometric.engine.batch import Batch
from drometric.engine.share import Share
from drometric.mining.mined import Miner, check_miner, mined_pairs, mines_by_anchor
from drometric.pair_losses import PairLoss, check_pair_loss, evaluate


class MinedPairLoss(AnchorLoss):
    """The mean of a pair loss over the ordered pairs that a miner gives, with multiplicity.

    The way pairs were chosen before: `MinedPairLoss(Margin(), SemiHard())`. No pair gives 0.

    Args:
        pair_loss: `Margin`, `Binomial`, `Contrastive`, or anything with their two methods.
        miner: `SemiHard`, `DistanceWeighted`, … or anything with their one method.
        normalize: L2-normalise the embeddings first.

    >>> import torch
    >>> from drometric import Margin, MinedPairLoss, SemiHard
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.4, 0.9]])
    >>> MinedPairLoss(Margin(), SemiHard())(embeddings, torch.tensor([0, 0, 1]))
    tensor(0.0531)
    """

    def __init__(self, pair_loss: PairLoss, miner: Miner, *, normalize: bool = True) -> None:
        super().__init__(normalize=normalize)
        check_pair_loss(pair_loss)
        check_miner(miner, optional=False)
        self.pair_loss = pair_loss
        self.miner = miner

    @property
    def by_anchor(self) -> bool:
        return mines_by_anchor(self.miner)

    def share(self, strip: Batch) -> Share:
        mined = mined_pairs(self.miner, strip)
        count = mined.positive + mined.negative
        taken = count > 0
        loss, steepness = evaluate(
            self.pair_loss, strip.similarity[taken], mined.positive[taken] > 0
        )
        slope = torch.zeros_like(count)
        slope[taken] = count[taken] * steepness
        return Share((count[taken] * loss).sum(), count.sum(), slope)
