"""Soft weights with a normaliser for each anchor and sign: all pairs, visited twice.

`log Σ e^{l/γ}` over an anchor's pairs of one sign (PerAnchorKL, multi-similarity, lifted structure)
must be known before any of its weights is. Both visits are symmetric: a pair is looked at once for
both of its anchors. The second visit is to a few pairs only where those hold all the weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drometric.engine.active import active_pairs
from drometric.engine.gradient import Gradient
from drometric.engine.judged import Judged, judge
from drometric.engine.kink import kept_pairs, near_kink
from drometric.engine.layout import FINER, Layout, Tile
from drometric.engine.outcome import Outcome
from drometric.engine.pair_list import sums_of_runs
from drometric.engine.plan import Plan
from drometric.engine.screening import Candidates, products, screen, tile_buffer
from drometric.engine.signs import Signs
from drometric.engine.tile_losses import (
    WIDEST,
    exponents,
    loss_range,
    tile_losses,
    weight_of_nothing,
)
from drometric.pair_losses import PairLoss

NEGLIGIBLE = 1e-6
"""Pairs are left out of a gradient that together hold no more of its weight."""

HEAVY = 1
"""So many pairs for each example are listed that may be all that have a weight."""

GENTLEST = 0.5
"""Exponents that differ by less leave float32 too few digits for their logarithms."""


@dataclass(eq=False)
class Group:
    """All anchors' pairs of one sign."""

    gamma: float
    base: float
    """The loss from which exponents are counted."""
    mass: Tensor
    """(B,), `Σ e^{(l - base)/γ}` of each anchor."""
    count: Tensor
    """(B,), how many pairs that is."""
    listed: list[Judged] = field(default_factory=list)
    """Pairs that are weighed one by one."""
    apart: list[Judged] = field(default_factory=list)
    """The same of pairs that the tiles leave out."""
    unlisted: Tensor | None = None
    """(B,), the mass of the other pairs that have a slope; None where there is none."""
    nothing: float = 0.0
    """The weight of a pair without a loss."""

    @property
    def log_sum(self) -> Tensor:
        """(B,), `log Σ e^{l/γ}`, -∞ for an anchor without pairs."""
        return self.mass.log() + self.base / self.gamma

    def weight(self, loss: Tensor) -> Tensor:
        """`e^{(l - base)/γ}`."""
        return ((loss - self.base) / self.gamma).exp()


class Anchors:
    """The groups of a layout's anchors, summed up."""

    def __init__(
        self,
        layout: Layout,
        pair_loss: PairLoss,
        gammas: dict[bool, float],
        plan: Plan,
        *,
        slack: bool,
        drop: bool = False,
    ) -> None:
        self.layout, self.pair_loss, self.plan, self.drop = layout, pair_loss, plan, drop
        self.near = near_kink(layout, pair_loss, drop=drop)
        zeros = torch.zeros(len(layout.rows), dtype=torch.float64, device=layout.rows.vector.device)
        self.groups = {
            sign: Group(gamma, base_of(layout, pair_loss, sign, gamma, slack=slack), zeros, zeros)
            for sign, gamma in gammas.items()
        }
        if layout.positives is not None and len(layout.positives):
            group = self.groups[True]
            group.listed.append(judge(layout, pair_loss, layout.positives, True))
            self._count_listed(group)
        in_tiles = (True, False) if layout.positives is None else (False,)
        active = active_pairs(layout, pair_loss, in_tiles, plan)
        if active is None:
            self._visit({sign: self.groups[sign] for sign in in_tiles}, collect=slack and not drop)
        else:
            for judged in active.judged:
                self.groups[bool(judged.positive[0])].listed.append(judged)
            counts = {} if drop else anchor_counts(layout, plan)
            for sign in in_tiles:
                group = self.groups[sign]
                self._count_listed(group)
                if not drop:
                    nothing = math.exp(-group.base / group.gamma)
                    group.mass = group.mass + nothing * (counts[sign] - group.count)
                    group.count = counts[sign]

    def __len__(self) -> int:
        return len(self.layout.rows)

    def outcome(
        self, value: float, pull: dict[bool, Tensor], log_mass: dict[bool, Tensor]
    ) -> Outcome:
        """The outcome of a loss, given its derivative in each anchor's `γ log_mass`.

        `log_mass` is `log_sum`, or with whatever else stands in the denominator of the weights.
        """
        scale = {
            sign: pull[sign] * (group.base / group.gamma - log_mass[sign]).exp()
            for sign, group in self.groups.items()
        }
        whole = sum(float((scale[sign] * group.mass).sum()) for sign, group in self.groups.items())
        dense = {}
        gradient = Gradient(self.layout)
        for sign, group in self.groups.items():
            if group.unlisted is not None:
                left_out = float((scale[sign] * group.unlisted).sum())
                if left_out > NEGLIGIBLE * whole:
                    dense[sign] = group
            for judged in group.apart if sign in dense else group.apart + group.listed:
                ends = scale[sign][judged.pairs.row]
                if self.layout.within:
                    ends = ends + scale[sign][judged.pairs.column]
                gradient.add_list(judged.pairs, group.weight(judged.loss) * judged.slope * ends)
        if dense:
            self._revisit(dense, scale, gradient)
        device = self.layout.rows.vector.device
        return gradient.outcome(torch.full((), value, dtype=torch.float64, device=device))

    def _count_listed(self, group: Group) -> None:
        for place, judged in enumerate(group.listed):
            if self.drop:
                judged = group.listed[place] = kept_pairs(self.layout, self.pair_loss, judged)
            self._count(group, judged)

    def _count(self, group: Group, judged: Judged) -> None:
        group.mass = group.mass + self._by_anchor(judged, group.weight(judged.loss))
        group.count = group.count + self._by_anchor(judged, torch.ones_like(judged.loss))

    def _by_anchor(self, judged: Judged, values: Tensor) -> Tensor:
        """The sum of the values of each anchor's pairs."""
        size, pairs = len(self.layout.rows), judged.pairs
        total = sums_of_runs(pairs.row, values, size)
        if self.layout.within:
            order = pairs.column.argsort(stable=True)
            total = total + sums_of_runs(pairs.column[order], values[order], size)
        return total

    def _visit(self, groups: dict[bool, Group], *, collect: bool) -> None:
        """Sum up the pairs in tiles; where most may turn out negligible, list the others."""
        layout, buffer = self.layout, self._buffer()
        few = HEAVY * (len(layout.rows) + len(layout.columns))
        heavy = Candidates(few, screen(layout, buffer.dtype), few) if collect else None
        for group in groups.values():
            group.mass, group.count = group.mass.clone(), group.count.clone()
            group.nothing = weight_of_nothing(group.base, group.gamma, buffer)
        for tile in layout.tiles(*self.plan.tile, finer=FINER):
            group = groups[tile.positive]
            similarity = self._similarity(tile, buffer)
            if heavy is not None and not tile.positive:
                heavy.look(tile, tile.hide(similarity, -math.inf))
            weight, kept, _ = self._weights(tile, group, similarity, slopes=False)
            group.mass[tile.rows] += weight.sum(1)
            if layout.within:
                group.mass[tile.columns] += weight.sum(0)
            if kept is not None:
                group.count[tile.rows] += kept.sum(1)
                if layout.within:
                    group.count[tile.columns] += kept.sum(0)
        counts = {} if self.drop else anchor_counts(layout, self.plan)
        for sign, group in groups.items():
            group.count = group.count if self.drop else counts[sign]
            group.unlisted = group.mass
            if heavy is not None and not sign:
                judged = judge(layout, self.pair_loss, heavy.pairs(), False)
                group.listed.append(judged)
                listed = self._by_anchor(judged, group.weight(judged.loss))
                group.unlisted = (group.mass - listed).clamp(min=0)
        for judged in [] if self.near is None else self.near.judged():
            group = groups[bool(judged.positive[0])]
            group.apart.append(judged)
            self._count(group, judged)

    def _revisit(
        self, groups: dict[bool, Group], scale: dict[bool, Tensor], gradient: Gradient
    ) -> None:
        """Add the pairs in tiles to a gradient."""
        buffer = self._buffer()
        dtype = buffer.dtype
        scale = {sign: vector.to(dtype) for sign, vector in scale.items()}
        for tile in self.layout.tiles(*self.plan.tile, finer=FINER):
            if tile.positive not in groups:
                continue
            similarity = self._similarity(tile, buffer)
            group = groups[tile.positive]
            weight, _, slope = self._weights(tile, group, similarity, slopes=True)
            of_anchor = scale[tile.positive]
            if self.layout.within:
                weight.mul_(of_anchor[tile.rows, None] + of_anchor[tile.columns])
            else:
                weight.mul_(of_anchor[tile.rows, None])
            gradient.add_tile(tile, weight, negated=tile.positive and slope is None)

    def _buffer(self) -> Tensor:
        rows, columns = self.layout.rows.vector, self.layout.columns.vector
        return tile_buffer(self.plan.tile, rows, columns)

    def _similarity(self, tile: Tile, buffer: Tensor) -> Tensor:
        rows, columns = self.layout.rows.vector, self.layout.columns.vector
        return products(rows[tile.rows], columns[tile.columns], buffer)

    def _weights(
        self, tile: Tile, group: Group, similarity: Tensor, *, slopes: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """`e^{(l - base)/γ}`, on request times the slope; which pairs are kept; and the slope.

        Of the two last None says all, and -1 or 1. Uses up the similarities.
        """
        if self.near is not None:
            self.near.put_aside(tile, similarity, remember=not slopes)
        loss, slope, hinge = tile_losses(self.pair_loss, tile, similarity)
        kept = (loss > 0).to(loss.dtype) if self.drop else None
        weight = tile.hide(exponents(loss, group.base, group.gamma), -math.inf).exp_()
        if kept is not None:
            weight.mul_(tile.hide(kept, 0.0))
        if slopes and hinge:
            torch.threshold_(weight, group.nothing, 0.0)
        if slopes and slope is not None:
            weight.mul_(slope)
        return weight, kept, slope


def suits(layout: Layout, pair_loss: PairLoss, gammas: dict[bool, float], *, slack: bool) -> bool:
    """Whether float32 can hold all exponents of a sign under one base, and has digits for them."""
    for sign, gamma in gammas.items():
        low, high = loss_range(layout, pair_loss, sign)
        low = min(0.0, high) if slack else low
        if not GENTLEST * gamma < high - low < WIDEST * gamma:
            return False
    return True


def base_of(layout: Layout, pair_loss: PairLoss, sign: bool, gamma: float, *, slack: bool) -> float:
    """A loss in the middle of those that have a weight."""
    low, high = loss_range(layout, pair_loss, sign)
    # With a slack element, of loss 0, losses below 0 have next to none.
    return (max(low, min(0.0, high)) + high) / 2 if slack else (low + high) / 2


def anchor_counts(layout: Layout, plan: Plan) -> dict[bool, Tensor]:
    """How many pairs of each sign every anchor has."""
    size, others = len(layout.rows), len(layout.columns)
    if isinstance(layout.pairs, Signs):
        strips = []
        for start in range(0, size, plan.tile[0]):
            rows = slice(start, min(start + plan.tile[0], size))
            strips.append([mask.sum(1) for mask in layout.pairs.block(rows, slice(0, others))])
        positive, negative = (torch.cat(parts).double() for parts in zip(*strips, strict=True))
        return {True: positive, False: negative}
    runs = layout.pairs
    if layout.within:
        # The run of a row's columns starts at 0: it holds all up to the end of its own class.
        positive = torch.bincount(runs.last, minlength=others + 1)[runs.last].double() - 1
        return {True: positive, False: others - 1 - positive}
    assert runs.first is not None
    positive = (runs.last - runs.first).double()
    return {True: positive, False: others - positive}
