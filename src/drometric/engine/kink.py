"""Which pairs have a loss at all: near the kink of a hinge that is for exact similarities to say.

It matters where pairs without a loss are left out: there a loss of rounding's size counts as one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drometric.engine.active import FEW
from drometric.engine.hard import TooManyTiesError
from drometric.engine.judged import Judged, judge_exactly
from drometric.engine.layout import Layout, Tile
from drometric.engine.pair_list import sorted_pairs
from drometric.engine.vectors import rounding
from drometric.pair_losses import Hinge, PairLoss, is_hinge

ROUNDED = 1e-9
"""Losses in float64 are no smaller than this but through rounding, or very near the kink."""


def kept_pairs(layout: Layout, pair_loss: PairLoss, found: Judged) -> Judged:
    """Those of some pairs that have a loss."""
    near = (found.loss > 0) & (found.loss < ROUNDED) & (found.slope != 0)
    kept = found.loss > 0
    if is_hinge(pair_loss) and bool(near.any()):
        kept[near.clone()] = judge_exactly(layout, pair_loss, found[near]).loss > 0
    return found[kept]


class NearKink:
    """The pairs in tiles whose similarity is too near to the kink for the tile to tell."""

    def __init__(self, layout: Layout, pair_loss: Hinge) -> None:
        self.layout, self.pair_loss = layout, pair_loss
        self.error = 2 * rounding(layout.rows, layout.columns)
        self.most = FEW * (len(layout.rows) + len(layout.columns))
        self.count = 0
        self.found: dict[bool, list[tuple[Tensor, Tensor]]] = {True: [], False: []}

    def put_aside(self, tile: Tile, similarity: Tensor, *, remember: bool) -> None:
        """Give those of a tile similarities that cost nothing; on the first visit, list them."""
        kink = self.pair_loss.kinks[0 if tile.positive else 1]
        near = tile.hide((similarity - kink).abs_() <= self.error, False)
        similarity.masked_fill_(near, kink + (1.0 if tile.positive else -1.0))
        if not remember:
            return
        row, column = near.nonzero(as_tuple=True)
        self.found[tile.positive].append((row + tile.rows.start, column + tile.columns.start))
        self.count += len(row)
        if self.count > self.most:
            raise TooManyTiesError

    def judged(self) -> list[Judged]:
        """Those of them that have a loss."""
        judged = []
        for sign, parts in self.found.items():
            if parts:
                pairs = sorted_pairs(*(torch.cat(part) for part in zip(*parts, strict=True)))
                loss = torch.zeros(len(pairs), dtype=torch.float64, device=pairs.row.device)
                positive = torch.full_like(pairs.row, sign, dtype=torch.bool)
                found = Judged(pairs, positive, loss, loss)
                exact = judge_exactly(self.layout, self.pair_loss, found)
                judged.append(exact[exact.loss > 0])
        return [part for part in judged if len(part)]


def near_kink(layout: Layout, pair_loss: PairLoss, *, drop: bool) -> NearKink | None:
    """A list to put such pairs in, where it matters."""
    return NearKink(layout, pair_loss) if drop and is_hinge(pair_loss) else None
