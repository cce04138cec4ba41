"""The gradient of a loss, gathered pair by pair or tile by tile."""

from __future__ import annotations

import torch
from torch import Tensor

from drometric.engine.layout import Layout, Tile
from drometric.engine.outcome import Outcome
from drometric.engine.pair_list import PairList, add_weighted_rows
from drometric.engine.vectors import Vectors


class Gradient:
    """Sums of slopes times vectors, for the rows and the columns of a layout.

    Within a batch both are one set of examples, and one sum.
    """

    def __init__(self, layout: Layout, *, of_rows: bool = True, of_columns: bool = True) -> None:
        self.layout = layout
        within = layout.within
        self.rows = torch.zeros_like(layout.rows.vector) if of_rows or within else None
        if within:
            self.columns = self.rows
        else:
            self.columns = torch.zeros_like(layout.columns.vector) if of_columns else None

    def add_list(self, pairs: PairList, slope: Tensor) -> None:
        """Add what pairs give, `slope` being the derivative of the loss in each similarity."""
        rows, columns = self.layout.rows.vector, self.layout.columns.vector
        if self.layout.within:
            assert self.rows is not None
            end = torch.cat((pairs.row, pairs.column))
            order = end.argsort(stable=True)
            other = torch.cat((pairs.column, pairs.row))[order]
            add_weighted_rows(
                self.rows, end[order], other, torch.cat((slope, slope))[order], columns
            )
            return
        if self.rows is not None:
            add_weighted_rows(self.rows, pairs.row, pairs.column, slope, columns)
        if self.columns is not None:
            order = pairs.column.argsort(stable=True)
            column, row = pairs.column[order], pairs.row[order]
            add_weighted_rows(self.columns, column, row, slope[order], rows)

    def add_tile(self, tile: Tile, slope: Tensor, *, negated: bool = False) -> None:
        """Add what the pairs of a tile give; with the other sign, if it is negated."""
        sign = -1.0 if negated else 1.0
        if self.rows is not None:
            others = self.layout.columns.vector[tile.columns]
            self.rows[tile.rows].addmm_(slope, others, alpha=sign)
        if self.columns is not None:
            others = self.layout.rows.vector[tile.rows]
            self.columns[tile.columns].addmm_(slope.T, others, alpha=sign)

    def add(self, other: Gradient, factor: float) -> None:
        """Add the sums of another gradient of the same layout, times a factor."""
        for own, more in {(self.rows, other.rows), (self.columns, other.columns)}:
            if own is not None and more is not None:
                own.add_(more, alpha=factor)

    def scale(self, factor: float | Tensor) -> None:
        """Multiply all that was added so far."""
        for total in {id(t): t for t in (self.rows, self.columns) if t is not None}.values():
            total.mul_(factor)

    def outcome(self, value: Tensor) -> Outcome:
        """The value with its gradients, in the user's order of rows. Uses up the sums."""
        layout = self.layout
        of_rows = _returned(self.rows, layout.rows, layout.row_order)
        of_columns = None
        if not layout.within:
            of_columns = _returned(self.columns, layout.columns, layout.column_order)
        return Outcome(value, of_rows, of_columns)


def _returned(slope: Tensor | None, vectors: Vectors, order: Tensor | None) -> Tensor | None:
    if slope is None:
        return None
    gradient = vectors.pull_back(slope)
    if order is None:
        return gradient
    returned = torch.empty_like(gradient)
    returned[order] = gradient
    return returned
