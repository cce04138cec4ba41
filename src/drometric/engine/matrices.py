"""Boolean matrices over pairs that a user gives, dense or sparse, read block by block.

A dense one may be larger than the memory, mapped from a file: it is never copied or reduced whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Protocol

import torch
from torch import Tensor

LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr)

TILE = 2048


class Matrix(Protocol):
    """A boolean matrix, a block of which can be read at a time."""

    def block(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        """Some rows and columns of it, as a dense matrix on `device`. Not to be written to."""
        ...

    def uneven(self) -> tuple[int, int] | None:
        """An (i, j), i < j, that differs from (j, i), if there is one. The diagonal is not read."""
        ...


def read_matrix(matrix: Tensor) -> Matrix:
    """A boolean tensor of any of the `LAYOUTS`."""
    if matrix.layout == torch.strided:
        return Dense(matrix)
    if matrix.layout == torch.sparse_csr:
        counts = matrix.crow_indices().to(torch.int64).diff()
        row = torch.repeat_interleave(torch.arange(len(counts), device=matrix.device), counts)
        return _sparse(row, matrix.col_indices(), matrix.values(), matrix.shape)
    coalesced = matrix.coalesce()
    row, column = coalesced.indices()
    return _sparse(row, column, coalesced.values(), matrix.shape)


@dataclass(frozen=True, eq=False)
class Dense:
    """A dense matrix, wherever it lies."""

    matrix: Tensor

    def block(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        return self.matrix[rows, columns].to(device)

    def uneven(self) -> tuple[int, int] | None:
        starts = range(0, len(self.matrix), TILE)
        for i, j in combinations_with_replacement(starts, 2):
            tile = self.matrix[i : i + TILE, j : j + TILE]
            mirrored = self.matrix[j : j + TILE, i : i + TILE].T
            if not torch.equal(tile, mirrored):
                row, column = (tile != mirrored).nonzero()[0].tolist()
                return i + row, j + column
        return None


@dataclass(frozen=True, eq=False)
class Sparse:
    """The entries that are True, row by row and each row's by column."""

    row: Tensor
    column: Tensor
    start: list[int]
    """Where the entries of each row start; at the end how many there are."""

    def block(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        entries = slice(self.start[rows.start], self.start[rows.stop])
        height, width = rows.stop - rows.start, columns.stop - columns.start
        row = self.row[entries].to(device) - rows.start
        column = self.column[entries].to(device) - columns.start
        # Entries of other columns go to a column of their own: to sort them out, a device would
        # have to tell how many they are.
        column = torch.where((column >= 0) & (column < width), column, width)
        block = torch.zeros(height, width + 1, dtype=torch.bool, device=device)
        block[row, column] = True
        return block[:, :width]

    def uneven(self) -> tuple[int, int] | None:
        size = len(self.start) - 1
        aside = self.row != self.column
        row, column = self.row[aside], self.column[aside]
        place, mirrored = row * size + column, column * size + row
        if torch.equal(place, mirrored.sort().values):
            return None
        alone = int(place[~torch.isin(place, mirrored)][0])
        i, j = sorted(divmod(alone, size))
        return i, j


def _sparse(row: Tensor, column: Tensor, value: Tensor, shape: torch.Size) -> Sparse:
    """Entries in any order, some of them twice or False."""
    width = max(shape[1], 1)
    place = torch.unique(row[value] * width + column[value])
    row = place // width
    edges = torch.arange(shape[0] + 1, device=place.device)
    return Sparse(row, place % width, torch.searchsorted(row, edges).tolist())
