"""Pairs as a list: their similarities, and the gradient of a weighted sum of them.

Where a loss uses few of all pairs this is all the work there is, and cheap enough for float64.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

GATHERED_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class PairList:
    """Pairs (row, column) in ascending order of rows; row and column in the engine's numbering."""

    row: Tensor
    column: Tensor

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, index: Tensor) -> PairList:
        """Some of the pairs, in the same order: `index` is a mask, or ascending."""
        return PairList(self.row[index], self.column[index])


def sorted_pairs(row: Tensor, column: Tensor) -> PairList:
    """Pairs found in any order, row by row and each row's in the order they were found in."""
    order = row.argsort(stable=True)
    return PairList(row[order], column[order])


def inner_products(pairs: PairList, rows: Tensor, columns: Tensor) -> Tensor:
    """The inner product of each pair's row and column, in the precision of the two matrices."""
    if not len(pairs):
        return rows.new_zeros(0)
    if rows.device.type in ("cpu", "cuda"):
        wanted = _csr(pairs, rows.new_zeros(len(pairs)), (len(rows), len(columns)))
        found: Tensor = torch.sparse.sampled_addmm(wanted, rows, columns.T, beta=0.0)
        return found.values()
    at_once = max(1, GATHERED_AT_ONCE // rows.shape[1])
    chunks = zip(torch.split(pairs.row, at_once), torch.split(pairs.column, at_once), strict=True)
    return torch.cat([torch.linalg.vecdot(rows[i], columns[j]) for i, j in chunks])


def add_weighted_rows(
    into: Tensor, row: Tensor, column: Tensor, weight: Tensor, others: Tensor
) -> None:
    """Add `weight * others[column]` to `into[row]`, pair by pair; `row` is ascending."""
    if not len(row):
        return
    if into.device.type in ("cpu", "cuda"):
        start = torch.searchsorted(row, torch.arange(len(into), device=row.device))
        into += torch.nn.functional.embedding_bag(
            column, others, start, mode="sum", per_sample_weights=weight.to(others.dtype)
        )
    else:
        into.index_add_(0, row, weight.to(others.dtype)[:, None] * others[column])


def by_place(row: Tensor, column: Tensor) -> Tensor:
    """The order of pairs by row, then by column."""
    order = column.argsort(stable=True)
    return order[row[order].argsort(stable=True)]


def sums_of_runs(index: Tensor, values: Tensor, size: int) -> Tensor:
    """The sum of the values of each index, (size,); `index` is ascending.

    The same every time, as adding up values where they happen to arrive is not on a GPU.
    """
    if not len(index):
        return values.new_zeros(size)
    start = torch.searchsorted(index, torch.arange(size, device=index.device))
    place = torch.arange(len(index), device=index.device)
    found: Tensor = torch.nn.functional.embedding_bag(place, values[:, None], start, mode="sum")
    return found[:, 0]


def _csr(pairs: PairList, values: Tensor, shape: tuple[int, int]) -> Tensor:
    edges = torch.arange(shape[0] + 1, device=pairs.row.device)
    start = torch.searchsorted(pairs.row, edges)
    if not _warned:
        # torch says once a process that its sparse rows are new; it is no news to the user.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.sparse_csr_tensor(start, pairs.column, values, size=shape)
        _warned.append(True)
    return torch.sparse_csr_tensor(start, pairs.column, values, size=shape)


_warned: list[bool] = []
