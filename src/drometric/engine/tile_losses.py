"""The losses of a tile of pairs, computed in place where the pair loss is a hinge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from drometric.engine.layout import Layout, Tile
from drometric.pair_losses import PairLoss, evaluate_shapes, evaluate_sign, is_hinge

WIDEST = 75.0
"""So far apart exponents may be in float32 under one base."""


class UnboundedError(Exception):
    """No number bounds the losses that a pair may have."""


class TileLosses(NamedTuple):
    """Losses and slopes of one sign, shaped like the similarities."""

    loss: Tensor
    slope: Tensor | None
    """None where it is -1 for positive and 1 for negative pairs,"""
    hinge: bool
    """and, of a hinge, 0 where the loss is 0."""


@dataclass(frozen=True)
class Linear:
    """The similarity itself: `λ - s` for a positive pair, `s - λ` for a negative one.

    What losses are soft maxima of that know no hinge.
    """

    threshold: float

    def positive(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        return self.threshold - similarity, -torch.ones_like(similarity)

    def negative(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        return similarity - self.threshold, torch.ones_like(similarity)


def tile_losses(pair_loss: PairLoss, tile: Tile, similarity: Tensor) -> TileLosses:
    """What the entries of a tile cost, pairs or not. Uses up the similarities."""
    positive = tile.positive
    if isinstance(pair_loss, Linear):
        threshold = pair_loss.threshold
        loss = similarity.neg_().add_(threshold) if positive else similarity.sub_(threshold)
        return TileLosses(loss, None, False)
    if is_hinge(pair_loss):
        kink = pair_loss.kinks[0 if positive else 1]
        excess = similarity.neg_().add_(kink) if positive else similarity.sub_(kink)
        return TileLosses(excess.clamp_(min=0), None, True)
    # What is no pair may have a similarity that the loss isn't made for, such as 1.
    loss, slope = evaluate_sign(pair_loss, tile.hide(similarity, 0.0), positive=positive)
    return TileLosses(loss, slope, False)


def loss_range(layout: Layout, pair_loss: PairLoss, positive: bool) -> tuple[float, float]:
    """The smallest and the largest loss that a pair of this sign can have; it is monotone.

    A loss like -log s has none: then only the plain path will do.
    """
    furthest = 1.001 * layout.rows.longest * layout.columns.longest
    ends = torch.tensor([-furthest, furthest], dtype=torch.float64)
    losses, _ = evaluate_shapes(pair_loss, ends, positive=positive)
    low, high = sorted(losses.tolist())
    if not math.isfinite(high - low):
        raise UnboundedError
    return low, high


def weight_of_nothing(base: float, gamma: float, like: Tensor) -> float:
    """`e^{-base/γ}`, rounded in the very steps in which the weights of tiles are.

    So a hinge at 0, which has no slope, is told by its weight: no pair has a smaller one.
    """
    return float(exponents(like.new_zeros(64), base, gamma).exp_()[0])


def exponents(loss: Tensor, base: float, gamma: float) -> Tensor:
    """`(l - base)/γ`, in place."""
    return (loss.sub_(base) if base else loss).div_(gamma)
