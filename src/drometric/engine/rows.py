"""Embeddings made ready for similarities, in float64 that does not depend on summation order.

Which pairs are the K hardest must not depend on a thread count, a tile size or a device, and
equal pairs must come out equal, so that ties are ties. Ordinary products don't give that: their
rounding depends on the order of summation. So every row is cut into three slices of few bits;
products of slices are then exact in float64 in any order, and six of them, added in a fixed
order, give the similarity to float64's precision (the error-free splitting of Ozaki et al. 2012).
Entries some 2^60 times smaller than the largest of their row count as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Slices = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows x of a matrix as `x = vector * norm * scale`; similarities are of `vector`.

    `vector` is the unit vector (0 for a zero row), or x itself where rows are not normalised.
    The scale is a power of two, kept apart: norm times scale may not fit into float64.
    """

    vector: Tensor
    norm: Tensor
    scale: Tensor
    slices: Slices
    magnitude: Tensor
    """What the products of the slices are to be multiplied with: 1 for unit vectors."""
    normalized: bool

    def similarity(self, others: Rows) -> Tensor:
        """The inner products of all rows with all others, (B, R)."""
        (a, b, c), (x, y, z) = self.slices, others.slices
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
        return _squared(self.slices) * self.magnitude.square()

    def pull_back(self, slope: Tensor) -> Tensor:
        """From a gradient in `vector` to the gradient in x: 0 for a zero row."""
        if not self.normalized:
            return slope
        tangent = slope - (slope * self.vector).sum(1, keepdim=True) * self.vector
        return torch.where(self.squared_length() > 0, tangent / self.norm / self.scale, 0.0)


def read_rows(x: Tensor, *, normalize: bool) -> Rows:
    """The rows of `x`, (B, d), of any floating-point dtype and scale."""
    x = x.detach().to(torch.float64)
    largest = x.abs().amax(1, keepdim=True)
    # The power of two at or below the largest entry. Dividing by it is exact, and the squares
    # of what is left neither overflow nor vanish.
    scale = largest / (2 * torch.frexp(largest).mantissa)
    scale = torch.where(largest > 0, scale, 1.0)
    scaled = x / scale / 2
    if not normalize:
        one = torch.ones_like(scale)
        return Rows(
            vector=x,
            norm=one,
            scale=one,
            slices=_slice(scaled),
            magnitude=2 * scale,
            normalized=False,
        )
    norm = square_root(_squared(_slice(scaled)))
    norm = torch.where(norm > 0, norm, 1.0)
    unit = scaled / norm
    return Rows(
        vector=unit,
        norm=2 * norm,
        scale=scale,
        slices=_slice(unit),
        magnitude=torch.ones_like(scale),
        normalized=True,
    )


def _slice(x: Tensor) -> Slices:
    """`x`, entries of at most 1, as a sum of three, any products of which add up exactly."""
    # A sum of d products of b-bit integers is exact while log2(d) + 2b <= 53.
    bits = (53 - (x.shape[1] - 1).bit_length()) // 2
    first = _round(x, bits)
    second = _round(x - first, 2 * bits + 1)
    return first, second, _round(x - first - second, 3 * bits + 2)


def _round(x: Tensor, bits: int) -> Tensor:
    return torch.round(x * 2.0**bits) * 2.0**-bits


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
