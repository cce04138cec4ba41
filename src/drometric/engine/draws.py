"""Pairs drawn from p* ∝ e^{l/γ}, without holding the weights of all pairs.

Tiles are visited twice: once to add up the weights in every row of every tile, once to draw in
those rows into which a random number fell.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.engine.hard import select
from drometric.engine.judged import Judged, joined, judge
from drometric.engine.kink import NearKink, kept_pairs, near_kink
from drometric.engine.layout import Layout, Tile
from drometric.engine.pair_list import PairList
from drometric.engine.plan import Plan
from drometric.engine.problem import BOTH
from drometric.engine.screening import products, tile_buffer
from drometric.engine.tile_losses import WIDEST, loss_range, tile_losses
from drometric.pair_losses import PairLoss
from drometric.uncertainty.draw import random_numbers

MOST_ACROSS = 64
"""Tiles next to each other: of the first visit so many numbers are kept for each row, at most."""


def drawn_evenly(
    among: Judged, count: int, generator: torch.Generator | None
) -> tuple[Judged, Tensor]:
    """`count` of some pairs, with replacement: those drawn, and how often each was."""
    place = (random_numbers(count, generator, among.loss.device) * len(among)).long()
    place, often = torch.unique(place, return_counts=True)
    return among[place], often


def drawn_pairs(
    layout: Layout,
    pair_loss: PairLoss,
    gamma: float,
    count: int,
    generator: torch.Generator | None,
    plan: Plan,
    *,
    drop: bool,
) -> tuple[Judged, Tensor] | None:
    """`count` of all pairs, drawn with replacement: those drawn, and how often each was.

    None where there is no pair.
    """
    weights = Weights(pair_loss, gamma, _base(layout, pair_loss, gamma, plan), drop)
    width = max(plan.tile[1], -(-len(layout.columns) // MOST_ACROSS))
    shape = max(1, plan.tile[0] * plan.tile[1] // width), width
    rows, columns = layout.rows.vector, layout.columns.vector
    buffer = tile_buffer(shape, rows, columns)

    near = near_kink(layout, pair_loss, drop=drop)
    # A cell is a row of a tile, or a pair of the list.
    cells, starts = [], [0]
    for tile in layout.tiles(*shape):
        similarity = products(rows[tile.rows], columns[tile.columns], buffer)
        if near is not None:
            near.put_aside(tile, similarity, remember=True)
        cells.append(weights.of_tile(tile, similarity).sum(1).double())
        starts.append(starts[-1] + len(similarity))
    listed = _listed(layout, pair_loss, near, drop=drop)
    if listed is not None:
        cells.append(weights.of(listed.loss))
    if not cells:
        return None
    mass = torch.cat(cells)
    edges = mass.cumsum(0)
    if not float(edges[-1]) > 0:
        return None

    target = random_numbers(count, generator, rows.device).sort().values * edges[-1]
    cell = torch.searchsorted(edges, target, right=True)
    # Rounding may carry a number past the end, or to a cell without a weight.
    cell = cell.clamp(max=int(mass.nonzero()[-1]))
    within_cell = ((target - (edges[cell] - mass[cell])) / mass[cell]).clamp(0, 1)
    bounds = torch.searchsorted(cell, torch.tensor(starts, device=cell.device)).tolist()
    found = []
    if listed is not None and bounds[-1] < count:
        place = cell[bounds[-1] :] - starts[-1]
        place, often = torch.unique_consecutive(place, return_counts=True)
        found.append((listed[place], often))
    drawn: dict[bool, list[Tensor]] = {True: [], False: []}
    cuts = zip(layout.tiles(*shape), starts, bounds, bounds[1:], strict=False)
    for tile, start, first, last in cuts:
        if first < last:
            row, place = torch.unique_consecutive(cell[first:last] - start, return_inverse=True)
            similarity = rows[tile.rows][row] @ columns[tile.columns].T
            some = tile.some_rows(row)
            if near is not None:
                near.put_aside(some, similarity, remember=False)
            weight = weights.of_tile(some, similarity)
            column = _inverted(weight, place, within_cell[first:last]) + tile.columns.start
            drawn[tile.positive].append((row[place] + tile.rows.start) * len(columns) + column)
    for sign, parts in drawn.items():
        if parts:
            pair, often = torch.unique(torch.cat(parts), return_counts=True)
            pairs = PairList(pair // len(columns), pair % len(columns))
            found.append((judge(layout, pair_loss, pairs, sign), often))
    judged = [pairs for pairs, _ in found]
    order = torch.cat([pairs.pairs.row for pairs in judged]).argsort(stable=True)
    return joined(judged), torch.cat([often for _, often in found])[order]


def _listed(
    layout: Layout, pair_loss: PairLoss, near: NearKink | None, *, drop: bool
) -> Judged | None:
    """The pairs that stand in no tile."""
    found = [] if near is None else near.judged()
    if layout.positives is not None and len(layout.positives):
        judged = judge(layout, pair_loss, layout.positives, True)
        found.append(kept_pairs(layout, pair_loss, judged) if drop else judged)
    return joined(found) if found else None


@dataclass(frozen=True, eq=False)
class Weights:
    """`e^{(l - base)/γ}`, or 1 for γ = ∞."""

    pair_loss: PairLoss
    gamma: float
    base: float
    drop: bool

    def of(self, loss: Tensor) -> Tensor:
        """The weights of some losses, which are used up if they are not float64."""
        kept = (loss > 0).to(loss.dtype) if self.drop else None
        weight = loss.clone() if loss.dtype == torch.float64 else loss
        weight = weight.sub_(self.base).div_(self.gamma).exp_()
        return weight if kept is None else weight.mul_(kept)

    def of_tile(self, tile: Tile, similarity: Tensor) -> Tensor:
        """The weights of a tile's pairs, 0 where there is no pair. Uses up the similarities."""
        loss = tile_losses(self.pair_loss, tile, similarity).loss
        return tile.hide(self.of(loss), 0.0)


def _base(layout: Layout, pair_loss: PairLoss, gamma: float, plan: Plan) -> float:
    """A loss from which to count exponents so that none overflows and the largest are there."""
    ranges = [loss_range(layout, pair_loss, sign) for sign in BOTH]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if high - low <= WIDEST * gamma:
        return (low + high) / 2
    hardest = select(layout, pair_loss, dict.fromkeys(BOTH, 1), plan).values()
    return max((float(judged.loss.amax()) for judged in hardest), default=high)


def _inverted(weight: Tensor, row: Tensor, number: Tensor) -> Tensor:
    """For each random number, the column in its row of weights that it falls into."""
    edges = weight.double().cumsum(1)
    place = torch.arange(weight.shape[1], device=weight.device)
    last = torch.where(weight > 0, place, 0).amax(1)
    parts = []
    for some, u in zip(torch.split(row, 2048), torch.split(number, 2048), strict=True):
        of_row = edges[some]
        column = torch.searchsorted(of_row, (u * of_row[:, -1])[:, None], right=True)[:, 0]
        parts.append(column.minimum(last[some]))
    return torch.cat(parts)
