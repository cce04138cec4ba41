"""Where the pairs are: positives as a short list, negatives as tiles that need no mask.

With class labels, examples are sorted by class: then the columns of each row's own class are a run,
and away from the runs all pairs are negative. Other sources of pairs (several labels an example, a
matrix of the user's, ignored pairs), and classes so large that their pairs are no short list, go
by masks that are read tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drometric.engine.arguments import Arguments
from drometric.engine.pair_list import PairList
from drometric.engine.signs import Signs, read_signs
from drometric.engine.vectors import Vectors, read_vectors

SHORT_LIST = 32
"""The positives are a short list up to so many for each example."""

FINER = 4
"""So many lower tiles stand in the place of one on the diagonal, where much is done with each."""

LOWEST = 64
"""Lower than this they would cost more calls than they save work."""


@dataclass(frozen=True, eq=False)
class Tile:
    """A block of pairs of one sign, and which of its entries are no such pairs."""

    rows: slice
    columns: slice
    positive: bool
    hidden: tuple[slice, Tensor] | None
    """Some columns of the tile, and a mask of them, True where there is no pair of this sign."""

    def pairs(self) -> Tensor | int:
        """How many pairs the tile holds."""
        height, width = self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        if self.hidden is None:
            return int(height * width)
        return torch.sub(height * width, self.hidden[1].sum())

    def some_rows(self, index: Tensor) -> Tile:
        """A tile of only some of the rows, which `index` counts from the first."""
        if self.hidden is None:
            return self
        columns, mask = self.hidden
        return replace(self, hidden=(columns, mask[index]))

    def hide(self, values: Tensor, fill: float) -> Tensor:
        """`values`, one an entry, with `fill` where there is no pair; in place."""
        if self.hidden is not None:
            columns, mask = self.hidden
            values[:, columns].masked_fill_(mask, fill)
        return values


@dataclass(frozen=True, eq=False)
class Runs:
    """The columns that stand in no tile: of the sorted row r those from first[r] to last[r]."""

    first: Tensor | None
    """None for 0."""
    last: Tensor

    def hidden(self, rows: slice, columns: slice, span: tuple[int, int]) -> tuple[slice, Tensor]:
        """What a tile must hide, given the first and last column of all its rows' runs."""
        start, stop = max(columns.start, span[0]), min(columns.stop, span[1])
        place = torch.arange(start, stop, device=self.last.device)
        mask = place < self.last[rows, None]
        if self.first is not None:
            mask &= place >= self.first[rows, None]
        return slice(start - columns.start, stop - columns.start), mask


@dataclass(frozen=True, eq=False)
class Layout:
    """The pairs of one call, in the engine's own order of rows and columns."""

    rows: Vectors
    columns: Vectors
    within: bool
    row_order: Tensor | None
    """The user's number of each row; None where the order is the user's."""
    column_order: Tensor | None
    pairs: Runs | Signs
    positives: PairList | None
    """All positive pairs, where they are a short list; None where they stand in the tiles."""

    def tiles(self, height: int, width: int, *, finer: int = 1) -> Iterator[Tile]:
        """All pairs that are not in the list, tile by tile, in a fixed order.

        Half of what lies on the diagonal is looked at in vain: `finer` cuts that into lower tiles.
        """
        low = height // finer if height >= LOWEST * finer else height
        blocks = list(self._blocks(height, width, low))
        spans = self._spans({(rows.start, rows.stop) for rows, _ in blocks})
        for rows, columns in blocks:
            span = spans.get((rows.start, rows.stop), (0, 0))
            if isinstance(self.pairs, Signs):
                yield from self._of_both_signs(self.pairs, rows, columns)
            elif max(columns.start, span[0]) < min(columns.stop, span[1]):
                yield Tile(rows, columns, False, self.pairs.hidden(rows, columns, span))
            else:
                yield Tile(rows, columns, False, None)

    def _blocks(self, height: int, width: int, low: int) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of tiles that hold every pair; lower ones on the diagonal."""
        size, others = len(self.rows), len(self.columns)
        for top in range(0, size, height):
            bottom = min(top + height, size)
            right = 0
            if self.within:
                right = bottom if low < height else top
                for some in range(top, right, low):
                    yield slice(some, min(some + low, bottom)), slice(some, bottom)
            for left in range(right, others, width):
                yield slice(top, bottom), slice(left, min(left + width, others))

    def _spans(self, strips: set[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
        """The first and the last column of the runs of each strip, read from the device at once."""
        if isinstance(self.pairs, Signs) or not strips:
            return {}
        ordered = sorted(strips)
        stops = self.pairs.last[[stop - 1 for _, stop in ordered]].tolist()
        starts = [0] * len(ordered)
        if self.pairs.first is not None:
            starts = self.pairs.first[[start for start, _ in ordered]].tolist()
        return dict(zip(ordered, zip(starts, stops, strict=True), strict=True))

    def _of_both_signs(self, signs: Signs, rows: slice, columns: slice) -> Iterator[Tile]:
        masks = signs.block(rows, columns)
        everywhere = slice(0, columns.stop - columns.start)
        for mask, positive in zip(masks, (True, False), strict=True):
            hidden = ~mask
            if self.within and columns.start < rows.stop:
                i = torch.arange(rows.start, rows.stop, device=mask.device)[:, None]
                hidden |= torch.arange(columns.start, columns.stop, device=mask.device) <= i
            yield Tile(rows, columns, positive, (everywhere, hidden))

    def numbered(self, pairs: PairList) -> tuple[Tensor, Tensor]:
        """The pairs in the user's numbering, within a batch the smaller number first."""
        i = pairs.row if self.row_order is None else self.row_order[pairs.row]
        j = pairs.column if self.column_order is None else self.column_order[pairs.column]
        return (torch.minimum(i, j), torch.maximum(i, j)) if self.within else (i, j)


def read_layout(arguments: Arguments, *, normalize: bool) -> Layout | None:
    """The pairs of a call; None where the embeddings are out of every ordinary range."""
    rows = read_vectors(arguments.embeddings, normalize=normalize)
    columns = rows
    if arguments.reference is not None:
        columns = read_vectors(arguments.reference, normalize=normalize)
    if rows is None or columns is None:
        return None
    if rows.vector.dtype != columns.vector.dtype:
        rows, columns = rows.in_double(), columns.in_double()
    return lay_out(arguments, rows, columns)


def in_users_order(layout: Layout, arguments: Arguments) -> Layout:
    """The same pairs with rows and columns as the user numbers them."""
    rows, columns = layout.rows, layout.columns
    if layout.row_order is not None:
        rows = rows.take(layout.row_order.argsort())
    if layout.within:
        columns = rows
    elif layout.column_order is not None:
        columns = columns.take(layout.column_order.argsort())
    return Layout(rows, columns, layout.within, None, None, read_signs(arguments), None)


def lay_out(arguments: Arguments, rows: Vectors, columns: Vectors) -> Layout:
    """The pairs that the arguments of a call speak of."""
    labels, within = arguments.labels, arguments.reference is None
    if labels is None or labels.dim() == 2 or arguments.ignore is not None:
        return Layout(rows, columns, within, None, None, read_signs(arguments), None)
    labels, row_order = _sorted(labels.to(torch.int64))
    others, column_order = labels, row_order
    if not within:
        assert arguments.reference_labels is not None
        others, column_order = _sorted(arguments.reference_labels.to(torch.int64))
    place = torch.arange(len(labels), device=labels.device)
    first = place + 1 if within else torch.searchsorted(others, labels)
    last = torch.searchsorted(others, labels, right=True)
    count = last - first
    if int(count.sum()) > SHORT_LIST * (len(rows) + len(columns)):
        return Layout(rows, columns, within, None, None, read_signs(arguments), None)
    rows = rows if row_order is None else rows.take(row_order)
    if within:
        columns = rows
    elif column_order is not None:
        columns = columns.take(column_order)
    positives = _listed(first, count)
    # Within a batch, pairs left of a row's class were met as those of an earlier row.
    runs = Runs(None if within else first, last)
    return Layout(rows, columns, within, row_order, column_order, runs, positives)


def _sorted(labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Labels in ascending order, and that order; None where they are in it already."""
    if bool((labels[1:] >= labels[:-1]).all()):
        return labels, None
    ascending = labels.sort(stable=True)
    return ascending.values, ascending.indices


def _listed(first: Tensor, count: Tensor) -> PairList:
    """Every row with each of its `count` columns from `first` on."""
    row = torch.repeat_interleave(torch.arange(len(first), device=first.device), count)
    place = torch.arange(len(row), device=first.device)
    start = count.cumsum(0) - count
    return PairList(row, first[row] + (place - start[row]))
