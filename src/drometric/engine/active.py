"""The pairs beyond the kink of a hinge, where they are few: the others cost nothing.

In a trained embedding nearly all negative pairs are far enough apart already.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from drometric.engine.judged import Judged, judge
from drometric.engine.layout import Layout
from drometric.engine.pair_list import sorted_pairs
from drometric.engine.plan import Plan
from drometric.engine.screening import Screen, above, keys_of_tiles, screen
from drometric.pair_losses import PairLoss, is_hinge

SAMPLED = 32
"""Rows that are looked at first: mostly they tell already that active pairs are many."""

FEW = 8
"""A list of pairs is worth its price up to so many for each example."""


@dataclass(frozen=True, eq=False)
class Active:
    """The pairs in tiles that may have a loss, and how many others there are, which have none."""

    judged: list[Judged]
    others: int


def active_pairs(
    layout: Layout, pair_loss: PairLoss, signs: tuple[bool, ...], plan: Plan
) -> Active | None:
    """Those of the signs' pairs in tiles; None where they are many, or the loss is no hinge."""
    if not is_hinge(pair_loss):
        return None
    screened = screen(layout, plan.screen)
    kinks = dict(zip((True, False), pair_loss.kinks, strict=True))
    most = FEW * (len(layout.rows) + len(layout.columns))
    if _share(screened, kinks[False]) * len(layout.rows) * len(layout.columns) > 4 * most:
        return None
    found: dict[bool, list[tuple[torch.Tensor, torch.Tensor]]] = {sign: [] for sign in signs}
    count, seen = 0, torch.zeros((), dtype=torch.int64, device=screened.rows.device)
    for tile, keys in keys_of_tiles(layout, screened, plan, found):
        kink = -kinks[True] if tile.positive else kinks[False]
        row, column = above(keys, kink - screened.slack(kink))
        found[tile.positive].append((row + tile.rows.start, column + tile.columns.start))
        seen += tile.pairs()
        count += len(row)
        if count > most:
            return None
    judged = []
    for sign, parts in found.items():
        if parts:
            pairs = sorted_pairs(*(torch.cat(part) for part in zip(*parts, strict=True)))
            judged.append(judge(layout, pair_loss, pairs, sign))
    return Active([part for part in judged if len(part)], int(seen) - count)


def _share(screened: Screen, kink: float) -> float:
    """Of some rows, the share of similarities beyond the kink of negative pairs."""
    some = screened.rows[:: max(1, len(screened.rows) // SAMPLED)]
    similar = some @ screened.columns.T > kink
    return float(similar.sum()) / max(similar.numel(), 1)
