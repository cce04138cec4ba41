"""What some anchors add to a loss that is a sum over all of them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drometric.engine.batch import Batch


class Share(NamedTuple):
    """What the anchors of a strip add to a loss: it is `Σ total / max(Σ terms, 1)`."""

    total: Tensor
    """A float64 scalar."""
    terms: int | Tensor
    """Of a mean, what the strip adds to its denominator; 0 where the loss is a sum."""
    slope: Tensor
    """Of the strip's shape, the derivative of `total` in each similarity."""


class Shared(Protocol):
    """A loss to which every anchor adds its share, whatever the other anchors are."""

    @property
    def normalize(self) -> bool:
        """Whether embeddings are L2-normalised first."""
        ...

    @property
    def by_anchor(self) -> bool:
        """False if the shares can be told from the whole batch only."""
        ...

    def share(self, strip: Batch) -> Share:
        """The share of the strip's anchors."""
        ...


def denominator(terms: int | Tensor, total: Tensor) -> Tensor:
    """`max(Σ terms, 1)`, in the precision and on the device of the total."""
    return torch.as_tensor(terms, dtype=total.dtype, device=total.device).clamp(min=1)
