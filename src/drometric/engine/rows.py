"""Embeddings made ready for similarities, in float64 that does not depend on summation order.

Which pairs are the K hardest must not depend on a thread count, a tile size or a device, and
equal pairs must come out equal, so that ties are ties. Ordinary products don't give that: their
rounding depends on the order of summation. So every row is cut into three slices of few bits;
products of slices are then exact in float64 in any order, and six of them, added in a fixed
order, give the similarity to float64's precision (the error-free splitting of Ozaki et al. 2012).
Entries some 2^60 times smaller than the largest of their row count as 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

ENTRIES_AT_ONCE = 2**21

Slices = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows x of a matrix as `x = vector * norm * scale`; similarities are of `vector`.

    `vector` is the unit vector (0 for a zero row), or x itself where rows are not normalised.
    The scale is a power of two, kept apart: norm times scale may not fit into float64. Slices
    are cut some rows at a time, when they are needed: all of them would take three times the
    memory of the vectors.
    """

    vector: Tensor
    norm: Tensor
    scale: Tensor
    magnitude: Tensor
    """What the products of the slices are to be multiplied with: 1 for unit vectors."""
    normalized: bool

    def __len__(self) -> int:
        return len(self.vector)

    def take(self, rows: slice) -> Rows:
        """Some of the rows, without a copy."""
        return Rows(
            vector=self.vector[rows],
            norm=self.norm[rows],
            scale=self.scale[rows],
            magnitude=self.magnitude[rows],
            normalized=self.normalized,
        )

    def similarity(self, others: Rows) -> Tensor:
        """The inner products of all rows with all others, (B, R)."""
        own = self._slices()
        similarity = self.vector.new_empty(len(self), len(others))
        for some in in_blocks(len(others), max(len(self), self.vector.shape[1])):
            similarity[:, some] = self._similarity(own, others.take(some))
        return similarity

    def _similarity(self, slices: Slices, others: Rows) -> Tensor:
        (a, b, c), (x, y, z) = slices, others._slices()
        small = (a @ z.T + c @ x.T) + b @ y.T
        product = a @ x.T + ((a @ y.T + b @ x.T) + small)
        if self.normalized:
            # Unit vectors are rounded: so that equal ones have the similarity 1, not nearly 1.
            parallel = (product.abs() - 1).abs() <= 2.0**-50
            return torch.where(parallel, product.sign(), product)
        return product * (self.magnitude * others.magnitude.T)

    def squared_length(self) -> Tensor:
        """The squared length of every vector, (B, 1): 1 or 0 where rows are normalised."""
        if self.normalized:
            return (self.vector != 0).any(1, keepdim=True).to(self.vector.dtype)
        squared = torch.empty_like(self.magnitude)
        for some in in_blocks(len(self), self.vector.shape[1]):
            squared[some] = _squared(self.take(some)._slices())
        return squared * self.magnitude.square()

    def pull_back(self, slope: Tensor) -> Tensor:
        """From a gradient in `vector` to the gradient in x: 0 for a zero row."""
        if not self.normalized:
            return slope
        tangent = slope - (slope * self.vector).sum(1, keepdim=True) * self.vector
        return torch.where(self.squared_length() > 0, tangent / self.norm / self.scale, 0.0)

    def _slices(self) -> Slices:
        # A magnitude may overflow. Then there is no finite similarity to lose.
        return _slice(self.vector if self.normalized else self.vector / self.magnitude)


def read_rows(x: Tensor, *, normalize: bool) -> Rows:
    """The rows of `x`, (B, d), of any floating-point dtype and scale."""
    x = x.detach()
    vector = torch.empty_like(x, dtype=torch.float64) if normalize else x.to(torch.float64)
    norm = vector.new_ones(len(x), 1)
    scale, magnitude = torch.ones_like(norm), torch.ones_like(norm)
    for some in in_blocks(len(x), x.shape[1]):
        scaled, power = _scaled(x[some].to(torch.float64))
        if normalize:
            length = square_root(_squared(_slice(scaled)))
            length = torch.where(length > 0, length, 1.0)
            vector[some] = scaled / length
            norm[some], scale[some] = 2 * length, power
        else:
            magnitude[some] = 2 * power
    return Rows(vector, norm, scale, magnitude, normalize)


def in_blocks(rows: int, width: int) -> Iterator[slice]:
    """Some rows at a time, of so many entries each."""
    at_once = max(1, ENTRIES_AT_ONCE // max(width, 1))
    for start in range(0, rows, at_once):
        yield slice(start, min(start + at_once, rows))


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of `x` divided by twice a power of two each, and that power.

    It is the one at or below the largest entry. Dividing by it is exact, and the squares of what
    is left neither overflow nor vanish.
    """
    largest = x.abs().amax(1, keepdim=True)
    power = largest / (2 * torch.frexp(largest).mantissa)
    power = torch.where(largest > 0, power, 1.0)
    return x / power / 2, power


def _slice(x: Tensor) -> Slices:
    """`x`, entries of at most 1, as a sum of three, any products of which add up exactly."""
    # A sum of d products of b-bit integers is exact while log2(d) + 2b <= 53.
    bits = (53 - (x.shape[1] - 1).bit_length()) // 2
    first = _round(x, bits)
    rest = x - first
    second = _round(rest, 2 * bits + 1)
    return first, second, _round(rest.sub_(second), 3 * bits + 2)


def _round(x: Tensor, bits: int) -> Tensor:
    return (x * 2.0**bits).round_().mul_(2.0**-bits)


def _squared(slices: Slices) -> Tensor:
    a, b, c = slices
    small = 2 * (a * c).sum(1, keepdim=True) + (b * b).sum(1, keepdim=True)
    return (a * a).sum(1, keepdim=True) + (2 * (a * b).sum(1, keepdim=True) + small)


def square_root(x: Tensor) -> Tensor:
    """The correctly rounded square root, of numbers that are neither huge nor tiny.

    torch's own may be off in the last bit, in a way that depends on the machine.
    """
    root = x.sqrt()
    # One step of Newton's method with the exact residual x - root²: root is cut in two halves
    # whose products are exact (Dekker 1971).
    shifted = root * (2.0**27 + 1)
    high = shifted - (shifted - root)
    low = root - high
    residual = ((x - high * high) - 2 * (high * low)) - low * low
    return torch.where(root > 0, root + residual / (2 * root), root)
