"""Embeddings made ready for fast products, and how far those products may be off.

`rows` reads embeddings so that similarities have the same bits everywhere; that takes six
products. Here they are read for one product in ordinary precision, with a bound on its error, so
that only the pairs for which rounding matters need the other kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from drometric.engine.rows import read_rows

# Row lengths between which squares of float32 neither overflow nor lose digits to underflow.
SHORTEST, LONGEST = 1e-12, 1e12


@dataclass(frozen=True, eq=False)
class Vectors:
    """The rows of a matrix: unit vectors (0 for a zero row), or as they are."""

    source: Tensor
    """The rows as they were given, (B, d), detached."""
    vector: Tensor
    """What is compared, in float32, or in float64 where the input or its scale asks for it."""
    norm: Tensor | None
    """(B, 1), what the rows were divided by; None where they are not normalised."""
    ordinary: bool
    """False where rows are zero, or too long or short for plain arithmetic."""
    longest: float
    """No vector is longer."""

    def __len__(self) -> int:
        return len(self.vector)

    @cached_property
    def double(self) -> Tensor:
        """The vectors in float64."""
        if self.vector.dtype == torch.float64:
            return self.vector
        if self.norm is None:
            return self.source.double()
        if not self.ordinary:
            return read_rows(self.source, normalize=True).vector
        double = self.source.double()
        return double.div_(torch.linalg.vector_norm(double, dim=1, keepdim=True))

    def in_double(self) -> Vectors:
        """The same with `vector` in float64."""
        return replace(self, vector=self.double)

    def rounded(self, dtype: torch.dtype) -> Vectors:
        """The same in a precision that may be lower."""
        norm = None if self.norm is None else self.norm.to(dtype)
        return replace(self, vector=self.vector.to(dtype), norm=norm)

    def take(self, index: Tensor) -> Vectors:
        """Some of the rows, or all of them in another order."""
        norm = None if self.norm is None else self.norm[index]
        return Vectors(self.source[index], self.vector[index], norm, self.ordinary, self.longest)

    def pull_back(self, slope: Tensor) -> Tensor:
        """From a gradient in the vectors to the gradient in the rows, in place: 0 for zero rows."""
        if self.norm is None:
            return slope
        along = torch.linalg.vecdot(slope, self.vector)[:, None]
        tangent = slope.addcmul_(along, self.vector, value=-1)
        if self.ordinary:
            return tangent.div_(self.norm)
        rows = read_rows(self.source, normalize=True)
        gradient = torch.where(rows.squared_length() > 0, tangent / rows.norm / rows.scale, 0.0)
        largest = torch.finfo(slope.dtype).max
        return gradient.clamp(-largest, largest).to(slope.dtype)


def read_vectors(
    x: Tensor, *, normalize: bool, dtype: torch.dtype = torch.float32
) -> Vectors | None:
    """The rows of `x`, which are finite, in `dtype` or that of `x` if it is finer.

    None where they are out of every ordinary range.
    """
    # In one layout: products of others may differ in their last bits.
    x = x.detach().contiguous()
    dtype = torch.promote_types(x.dtype, dtype)
    vector = x.to(dtype)
    norm = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    if not len(x):
        return Vectors(x, vector, norm if normalize else None, True, 1.0)
    shortest, longest = torch.stack(norm.aminmax()).tolist()
    ordinary = shortest > SHORTEST and longest < LONGEST
    if not normalize:
        return Vectors(x, vector, None, True, longest) if longest < LONGEST else None
    if ordinary:
        return Vectors(x, vector / norm, norm, True, 1.0)
    return Vectors(x, read_rows(x, normalize=True).vector.to(dtype), norm, False, 1.0)


def rounding(rows: Vectors, columns: Vectors) -> float:
    """How far the products of two sets of vectors may be from the similarities of their sources.

    The norm of a row is off by at most d/2 + 1 units (half the spacing of numbers at 1), an entry
    by one more, and a sum of d products by d units, in whatever order it is taken.
    """
    d = rows.vector.shape[1]
    unit = torch.finfo(rows.vector.dtype).eps / 2
    # What underflows is lost whole: at most the smallest normal number in each of d products.
    lost = 4 * d * torch.finfo(torch.float32).tiny
    return (2 * d + 16) * unit * rows.longest * columns.longest + lost
