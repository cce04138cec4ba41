"""What every path of the engine gives: the value of a loss and its gradients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Outcome:
    """The value of a loss, and its derivatives in the rows that it was called with."""

    value: Tensor
    """The loss, a float64 scalar."""
    gradient: Tensor | None
    """(B, d), the derivative in the embeddings; None where nobody wants it."""
    reference_gradient: Tensor | None = None
    """(R, d), the derivative in the reference."""
