"""Soft weights with one normaliser (Uniform, KL, BalancedKL): all pairs, visited once.

`γ log mean e^{l/γ}` has the gradient `Σ e^{l/γ} l' / Σ e^{l/γ}`. Numerator and denominator are
summed up side by side, under one base of the exponents, and divided at the end. Where most hinges
are 0, the few other pairs are a list, and the rest only counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.engine.active import active_pairs
from drometric.engine.contribution import Contribution
from drometric.engine.gradient import Gradient
from drometric.engine.judged import Judged, joined, judge
from drometric.engine.kink import kept_pairs, near_kink
from drometric.engine.layout import FINER, Layout, Tile
from drometric.engine.plan import Plan
from drometric.engine.screening import products, tile_buffer
from drometric.engine.tile_losses import (
    WIDEST,
    exponents,
    loss_range,
    tile_losses,
    weight_of_nothing,
)
from drometric.pair_losses import PairLoss

LINEAR, MEAN = 1e10, 1e12
"""From so many times the range of losses on, γ makes `e^x` `1 + x`, and a mean of the maximum."""


@dataclass(frozen=True)
class Rest:
    """The pairs that stand in no list: their number, and `Σ e^x` of `x = (l - base)/γ`.

    Where it is gentle (γ is large against the range of the losses), `Σ (e^x - 1)`: that has digits
    that the other has lost.
    """

    base: float
    total: float
    count: int


def soft_maximum_of(
    layout: Layout,
    pair_loss: PairLoss,
    signs: tuple[bool, ...],
    gamma: float,
    plan: Plan,
    *,
    drop: bool,
) -> Contribution | None:
    """`γ log mean e^{l/γ}` over all pairs of the signs, γ > 0; None where there is no pair."""
    ranges = [loss_range(layout, pair_loss, sign) for sign in signs]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    gamma = min(gamma, MEAN * (high - low) + 1.0)
    gentle = high - low < 0.5 * gamma
    found, mass, rest = [], None, Rest(low, 0.0, 0)
    if True in signs and layout.positives is not None and len(layout.positives):
        found.append(judge(layout, pair_loss, layout.positives, True))
    in_tiles = tuple(sign for sign in signs if layout.positives is None or not sign)
    if in_tiles:
        active = active_pairs(layout, pair_loss, in_tiles, plan)
        if active is None:
            mass = SoftMass(layout, pair_loss, gamma, (low, high), drop=drop)
            found += mass.add_tiles(in_tiles, plan)
            rest = mass.rest()
        else:
            found += active.judged
            if not drop:
                rest = Rest(0.0, 0.0 if gentle else float(active.others), active.others)
    listed = joined(found) if found else None
    if listed is not None and drop:
        listed = kept_pairs(layout, pair_loss, listed)
    if listed is not None and not len(listed):
        listed = None
    count = rest.count + (0 if listed is None else len(listed))
    if not count:
        return None
    normalise = _gently if gentle else _steeply
    value, weight, factor = normalise(None if listed is None else listed.loss, rest, count, gamma)
    slope = None if listed is None or weight is None else weight * listed.slope
    return Contribution(value, listed, slope, None if mass is None else mass.gradient, factor)


def _gently(
    loss: Tensor | None, rest: Rest, count: int, gamma: float
) -> tuple[float, Tensor | None, float]:
    """The value, the weights of the listed pairs, and the factor of the others' sums."""
    total, listed = rest.total, None
    if loss is not None:
        listed = ((loss - rest.base) / gamma).expm1()
        total += float(listed.sum())
    mass = count + total
    value = rest.base + gamma * math.log1p(total / count)
    return value, None if listed is None else (1 + listed) / mass, 1 / mass


def _steeply(
    loss: Tensor | None, rest: Rest, count: int, gamma: float
) -> tuple[float, Tensor | None, float]:
    """The same where exponents are large."""
    top = rest.base if loss is None else max(float(loss.amax()), rest.base)
    mass = rest.total * math.exp((rest.base - top) / gamma)
    listed = None
    if loss is not None:
        listed = ((loss - top) / gamma).exp()
        mass += float(listed.sum())
    value = top + gamma * math.log(mass / count)
    factor = math.exp((rest.base - top) / gamma) / mass
    return value, None if listed is None else listed / mass, factor


class SoftMass:
    """The pairs in tiles: `Σ e^x`, `x = (l - base)/γ`, and the sum of their gradients."""

    def __init__(
        self,
        layout: Layout,
        pair_loss: PairLoss,
        gamma: float,
        losses: tuple[float, float],
        *,
        drop: bool,
    ) -> None:
        self.layout, self.pair_loss, self.gamma, self.drop = layout, pair_loss, gamma, drop
        self.base, high = losses
        self.gentle = high - self.base < 0.5 * gamma
        self.linear = gamma >= LINEAR * (high - self.base)
        self.running = not high - self.base <= WIDEST * gamma
        self.gradient = Gradient(layout)
        self.nothing = weight_of_nothing(self.base, gamma, layout.rows.vector)
        self.count = torch.zeros((), dtype=torch.float64, device=layout.rows.vector.device)
        self.total = self.count.clone()

    def add_tiles(self, signs: tuple[bool, ...], plan: Plan) -> list[Judged]:
        """Add all pairs of the signs that stand in tiles, but those that it returns."""
        near = near_kink(self.layout, self.pair_loss, drop=self.drop)
        rows, columns = self.layout.rows.vector, self.layout.columns.vector
        buffer = tile_buffer(plan.tile, rows, columns)
        for tile in self.layout.tiles(*plan.tile, finer=FINER):
            if tile.positive in signs:
                similarity = products(rows[tile.rows], columns[tile.columns], buffer)
                if near is not None:
                    near.put_aside(tile, similarity, remember=True)
                self._add(tile, *tile_losses(self.pair_loss, tile, similarity))
        return [] if near is None else near.judged()

    def rest(self) -> Rest:
        """The sums, read from the device."""
        total, count = torch.stack((self.total, self.count)).tolist()
        return Rest(self.base, total, int(count))

    def _add(self, tile: Tile, loss: Tensor, slope: Tensor | None, hinge: bool) -> None:
        """Add a tile, using up its losses."""
        kept = None
        if self.drop or (hinge and self.gentle):
            kept = tile.hide((loss > 0).to(loss.dtype), 0.0)
        self.count += kept.sum() if kept is not None and self.drop else tile.pairs()
        tile.hide(loss, -math.inf)
        if self.running:
            self._raise(float(loss.amax()))
        exponents(loss, self.base, self.gamma)
        weight = self._gently(tile, loss, kept) if self.gentle else self._steeply(loss, kept)
        if hinge and kept is None:
            torch.threshold_(weight, self.nothing, 0.0)
        if kept is not None:
            weight.mul_(kept)
        if slope is not None:
            weight.mul_(slope)
        self.gradient.add_tile(tile, weight, negated=slope is None and tile.positive)

    def _steeply(self, exponent: Tensor, kept: Tensor | None) -> Tensor:
        weight = exponent.exp_()
        if kept is not None:
            weight.mul_(kept)
        self.total += weight.sum()
        return weight

    def _gently(self, tile: Tile, exponent: Tensor, kept: Tensor | None) -> Tensor:
        tile.hide(exponent, 0.0)
        if kept is not None and self.drop:
            exponent.mul_(kept)
        beyond = exponent if self.linear else exponent.expm1_()
        self.total += beyond.sum()
        return tile.hide(beyond.add_(1.0), 0.0)

    def _raise(self, highest: float) -> None:
        """Count exponents from the largest loss so far."""
        if highest > self.base:
            factor = math.exp((self.base - highest) / self.gamma)
            self.base = highest
            self.nothing = weight_of_nothing(highest, self.gamma, self.gradient.layout.rows.vector)
            self.total *= factor
            self.gradient.scale(factor)
