"""A pair loss, averaged over the pairs that a miner chooses."""

from __future__ import annotations

import torch

from drometric.engine.batch import Batch
from drometric.engine.pairwise_loss import PairwiseLoss
from drometric.engine.solution import Solution, from_slope
from drometric.mining.mined import Miner, check_miner
from drometric.pair_losses import PairLoss, check_pair_loss


class MinedPairLoss(PairwiseLoss):
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

    def solve(self, batch: Batch) -> Solution:
        positive, negative = self.miner.mine(batch)
        total = (positive.sum() + negative.sum()).clamp(min=1)
        value = batch.similarity.new_zeros(())
        slope = torch.zeros_like(batch.similarity)
        for count, of_pair in (
            (positive, self.pair_loss.positive),
            (negative, self.pair_loss.negative),
        ):
            taken = count > 0
            loss, steepness = of_pair(batch.similarity[taken])
            share = count[taken] / total
            value = value + (share * loss).sum()
            slope[taken] += share * steepness
        return from_slope(batch, value, slope)

    def extra_repr(self) -> str:
        return f"{self.pair_loss}, {self.miner}"
