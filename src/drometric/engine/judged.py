"""Pairs of a layout as a list with their losses in float64: the shape in which few pairs matter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drometric.engine.layout import Layout
from drometric.engine.pair_list import PairList, inner_products
from drometric.engine.rows import read_rows
from drometric.pair_losses import PairLoss, evaluate, evaluate_sign

EXACTLY_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class Judged:
    """Pairs and what they cost."""

    pairs: PairList
    positive: Tensor
    loss: Tensor
    slope: Tensor

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, index: Tensor) -> Judged:
        """Some of the pairs, in the same order."""
        parts = (self.positive, self.loss, self.slope)
        return Judged(self.pairs[index], *(part[index] for part in parts))


def judge(layout: Layout, pair_loss: PairLoss, pairs: PairList, positive: bool) -> Judged:
    """The losses of some pairs of one sign."""
    similarity = inner_products(pairs, layout.rows.double, layout.columns.double)
    sign = torch.full_like(pairs.row, positive, dtype=torch.bool)
    return Judged(pairs, sign, *evaluate_sign(pair_loss, similarity, positive=positive))


def judge_exactly(layout: Layout, pair_loss: PairLoss, found: Judged) -> Judged:
    """The same pairs, judged by the similarities that `reference` sees."""
    parts = []
    normalize = layout.rows.norm is not None
    everything = torch.arange(len(found), device=found.loss.device)
    for index in torch.split(everything, EXACTLY_AT_ONCE):
        rows, columns = (
            read_rows(vectors.source[place[index]], normalize=normalize)
            for vectors, place in (
                (layout.rows, found.pairs.row),
                (layout.columns, found.pairs.column),
            )
        )
        parts.append(rows.similarity(columns).diagonal())
    loss, slope = evaluate(pair_loss, torch.cat(parts), found.positive)
    return replace(found, loss=loss, slope=slope)


def joined(found: list[Judged]) -> Judged:
    """Pairs of both signs as one list, row by row."""
    if len(found) == 1:
        return found[0]
    row, column = (torch.cat([getattr(part.pairs, n) for part in found]) for n in ("row", "column"))
    order = row.argsort(stable=True)
    positive, loss, slope = (
        torch.cat([getattr(part, name) for part in found])[order]
        for name in ("positive", "loss", "slope")
    )
    return Judged(PairList(row[order], column[order]), positive, loss, slope)
