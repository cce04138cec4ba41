"""Low precision first: a short list of pairs that is sure to hold the hardest of all.

The losses of pairs of one sign are monotone in the similarity, so the hardest negatives are the
most similar ones and the hardest positives the least similar. Every tile is compared with a
running threshold: what beats it is kept, and when more is kept than the list may hold the
threshold is raised. It stands lower than the k-th key seen so far by twice what rounding may have
moved a key, so no pair that belongs to the k hardest is lost, ties included.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.engine.layout import Layout, Tile
from drometric.engine.pair_list import PairList, sorted_pairs
from drometric.engine.plan import Plan
from drometric.engine.vectors import Vectors, rounding

GROUP = 8
"""Entries of a column whose maximum is compared first: most groups hold no candidate."""


@dataclass(frozen=True, eq=False)
class Screen:
    """Rows and columns in the precision in which candidates are looked for."""

    rows: Tensor
    columns: Tensor
    error: float
    """How far a product may be from the similarity, before it is rounded to the precision."""
    unit: float
    """How far that last rounding may move it, relatively."""

    def slack(self, threshold: float) -> float:
        """How far below a threshold on screened keys the key of a pair at it may stand."""
        return 2 * (self.error + self.unit * (abs(threshold) + 2 * self.error))


def screen(layout: Layout, dtype: torch.dtype) -> Screen:
    """The vectors of a layout, rounded to `dtype`."""
    rows, columns = layout.rows, layout.columns
    if dtype == torch.float64:
        double = Vectors(rows.source, rows.double, rows.norm, rows.ordinary, rows.longest)
        return Screen(rows.double, columns.double, rounding(double, columns), 0.0)
    error = rounding(rows, columns)
    if torch.finfo(dtype).eps <= torch.finfo(rows.vector.dtype).eps:
        return Screen(rows.vector, columns.vector, error, 0.0)
    of_rows, lost_of_rows = _rounded(rows, dtype)
    of_columns, lost_of_columns = (
        _rounded(columns, dtype)
        if rows is not columns
        else (
            of_rows,
            lost_of_rows,
        )
    )
    error += lost_of_rows * columns.longest + lost_of_columns * (rows.longest + lost_of_rows)
    # Devices may round partial sums, too: of at most a few parts.
    unit = torch.finfo(dtype).eps
    partial = 4 * unit * rows.longest * columns.longest if of_rows.is_cuda else 0.0
    return Screen(of_rows, of_columns, error + partial, unit)


def _rounded(vectors: Vectors, dtype: torch.dtype) -> tuple[Tensor, float]:
    """The vectors in a lower precision, and the longest difference."""
    rounded = vectors.vector.to(dtype)
    lost = torch.linalg.vector_norm(vectors.vector - rounded, dim=1)
    return rounded, 1.01 * float(lost.amax()) if len(lost) else 0.0


class Candidates:
    """The pairs of one sign that may be among the k hardest, while tiles go by."""

    def __init__(self, k: int, screened: Screen, spare: int) -> None:
        self.k, self.screened, self.most = k, screened, k + spare
        self.threshold = -math.inf
        self.count = 0
        self.enough = min(self.most, 2 * k + 1024)
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def look(self, tile: Tile, keys: Tensor) -> None:
        """Keep what beats the threshold. The keys are harder where larger, -∞ where no pair is."""
        if self.count < self.k and self.threshold == -math.inf:
            self._start(keys)
        row, column = above(keys, self.cut)
        self.count += len(row)
        self.kept.append((row + tile.rows.start, column + tile.columns.start, keys[row, column]))
        if self.count > self.enough:
            self._raise()

    @property
    def cut(self) -> float:
        """What a key must reach."""
        if self.threshold == -math.inf:
            return -math.inf
        return self.threshold - self.screened.slack(self.threshold)

    @property
    def overflown(self) -> bool:
        """True where even the highest threshold leaves too many."""
        return self.count > self.most

    def pairs(self) -> PairList:
        """The candidates, row by row."""
        self._raise()
        return sorted_pairs(self.kept[0][0], self.kept[0][1])

    def _start(self, keys: Tensor) -> None:
        """A first threshold: of k groups of entries each has one that reaches it."""
        groups = keys.shape[0] // GROUP * keys.shape[1]
        if groups >= 2 * self.k:
            highest = _grouped(keys[: keys.shape[0] // GROUP * GROUP]).amax(1)
            self.threshold = float(highest.flatten().topk(self.k, sorted=False).values.amin())

    def _raise(self) -> None:
        row, column, key = (torch.cat(part) for part in zip(*self.kept, strict=True))
        if len(key) > self.k:
            self.threshold = float(key.topk(self.k, sorted=False).values.amin())
            hard = key >= self.cut
            row, column, key = row[hard], column[hard], key[hard]
        self.kept, self.count = [(row, column, key)], len(key)
        # As many again are welcome: each raise costs as much as what it looks at.
        self.enough = min(self.most, 2 * self.count + 1024)


def above(keys: Tensor, cut: float) -> tuple[Tensor, Tensor]:
    """Rows and columns of the finite keys that are at least `cut`, in a fixed order."""
    cut = max(cut, torch.finfo(keys.dtype).min)
    if keys.shape[0] % GROUP:
        row, column = (keys >= cut).nonzero(as_tuple=True)
        return row, column
    grouped = _grouped(keys)
    group, column = (grouped.amax(1) >= cut).nonzero(as_tuple=True)
    hit, place = (grouped[group, :, column] >= cut).nonzero(as_tuple=True)
    return group[hit] * GROUP + place, column[hit]


def _grouped(keys: Tensor) -> Tensor:
    return keys.view(-1, GROUP, keys.shape[1])


def hardest_candidates(
    layout: Layout, k: dict[bool, int], plan: Plan, dtype: torch.dtype
) -> dict[bool, PairList] | None:
    """Of each sign that `k` names, pairs that hold its k hardest; None if they are too many.

    A sign whose pairs stand in a list is left out.
    """
    screened = screen(layout, dtype)
    found = {sign: Candidates(k[sign], screened, plan.spare) for sign in k}
    for tile, keys in keys_of_tiles(layout, screened, plan, found):
        of_sign = found[tile.positive]
        of_sign.look(tile, keys)
        if of_sign.overflown:
            return None
    return {sign: of_sign.pairs() for sign, of_sign in found.items() if of_sign.kept}


def keys_of_tiles(
    layout: Layout, screened: Screen, plan: Plan, signs: Container[bool]
) -> Iterator[tuple[Tile, Tensor]]:
    """The tiles of some signs, with keys that are larger where pairs are harder, -∞ for no pair."""
    buffer = tile_buffer(plan.screening_tile, screened.rows, screened.columns)
    for tile in layout.tiles(*plan.screening_tile):
        if tile.positive in signs:
            keys = products(screened.rows[tile.rows], screened.columns[tile.columns], buffer)
            yield tile, tile.hide(keys.neg_() if tile.positive else keys, -math.inf)


def tile_buffer(shape: tuple[int, int], rows: Tensor, columns: Tensor) -> Tensor:
    """Memory for the products of a tile of some shape, or of less where there is less."""
    return rows.new_empty(min(shape[0], len(rows)) * min(shape[1], len(columns)))


def products(rows: Tensor, columns: Tensor, buffer: Tensor) -> Tensor:
    """The inner products of some rows with some columns, written into a buffer."""
    shape = len(rows), len(columns)
    return torch.mm(rows, columns.T, out=buffer[: shape[0] * shape[1]].view(shape))
