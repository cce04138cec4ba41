"""What an uncertainty set is given (`Pairs`) and what it gives back (`WorstCase`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pairs:
    """The n pairs that count, with their losses: each unordered pair once, by (row, column).

    Never empty when a set sees it. All tensors have n entries and lie on one device.
    """

    loss: Tensor
    """l, float64."""
    positive: Tensor
    """True where the pair is similar."""
    row: Tensor
    """i, the pair's row of the embeddings."""
    column: Tensor
    """j, its row of the embeddings (then i < j), or of the reference."""
    row_count: int
    """B, the number of embeddings: the anchors."""
    column_count: int
    """The number of examples that `column` counts in."""
    within: bool
    """True for pairs within one batch (both ends are anchors), False across two sets."""
    labels: Tensor | None = None
    """The user's labels of the rows, if there are any (not with `similar=`)."""
    reference_labels: Tensor | None = None
    """The user's labels of the columns; within one batch the same as `labels`."""

    def __len__(self) -> int:
        return len(self.loss)

    def keep(self, mask: Tensor) -> Pairs:
        """Only the pairs where `mask` is True, in the same order."""
        return replace(
            self,
            loss=self.loss[mask],
            positive=self.positive[mask],
            row=self.row[mask],
            column=self.column[mask],
        )


class WorstCase(NamedTuple):
    """The answer of an uncertainty set."""

    value: Tensor
    """max over p in U of Σ p l - penalty, a scalar."""
    weight: Tensor
    """p*, one weight a pair, in the order of the pairs."""


@runtime_checkable
class UncertaintySet(Protocol):
    """Anything that finds the worst weighting of the pairs."""

    def worst_case(self, pairs: Pairs) -> WorstCase:
        """The largest robust loss over the set, and the weights p* that reach it."""
        ...


def check_uncertainty(uncertainty: object) -> None:
    """An uncertainty set, not its class or its name, or a `ValueError`."""
    if isinstance(uncertainty, type) or not isinstance(uncertainty, UncertaintySet):
        raise ValueError(
            "uncertainty must be an object with a method worst_case, such as TopK(k=160); "
            f"got {uncertainty!r}"
        )
