"""`Anchors` from one matrix of a small batch: the soft maxima of every anchor and sign."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.engine.dense import Dense
from drometric.engine.outcome import Outcome
from drometric.pair_losses import PairLoss


@dataclass(frozen=True, eq=False)
class DenseGroup:
    """All anchors' pairs of one sign."""

    gamma: float
    log_sum: Tensor
    """(B,), `log Σ e^{l/γ}`, -∞ for an anchor without pairs."""
    count: Tensor
    weight: Tensor
    """(B, R), `e^{l/γ - log_top}`."""
    log_top: Tensor


class DenseAnchors:
    """The groups of a small batch's anchors, summed up: `Anchors` from one matrix."""

    def __init__(
        self, dense: Dense, pair_loss: PairLoss, gammas: dict[bool, float], *, drop: bool = False
    ) -> None:
        self.dense = dense
        loss, self.slope = dense.losses(pair_loss)
        self.groups = {}
        for sign, gamma in gammas.items():
            mask = dense.positive if sign else dense.negative
            counted = mask & (loss > 0) if drop else mask
            exponent = (loss / gamma).masked_fill_(~counted, -math.inf)
            top = exponent.amax(1).clamp_(min=torch.finfo(exponent.dtype).min)
            weight = exponent.sub_(top[:, None]).exp_()
            log_sum = weight.sum(1).log_().add_(top)
            self.groups[sign] = DenseGroup(gamma, log_sum, counted.sum(1).to(log_sum), weight, top)

    def __len__(self) -> int:
        return len(self.dense.rows)

    def outcome(
        self, value: float, pull: dict[bool, Tensor], log_mass: dict[bool, Tensor]
    ) -> Outcome:
        """The outcome of a loss, given its derivative in each anchor's `γ log_mass`."""
        total = None
        for sign, group in self.groups.items():
            scale = (group.log_top - log_mass[sign]).exp_().mul_(pull[sign])
            weight = group.weight.mul_(scale[:, None])
            total = weight if total is None else total.add_(weight)
        assert total is not None
        return self.dense.outcome(value, total.mul_(self.slope))
