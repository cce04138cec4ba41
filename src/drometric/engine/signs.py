"""Which pairs are positive or negative: known block by block, never for all pairs at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.engine.arguments import Arguments
from drometric.engine.matrices import Matrix

LABELS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Signs:
    """The signs of all pairs of one call."""

    similar: Matrix | Classes | Tags
    ignored: Matrix | None
    within: bool
    device: torch.device

    def block(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """The masks of the positive and of the negative pairs of some rows and columns.

        Ignored pairs and, within a batch, self-pairs are in neither.
        """
        positive = self.similar.block(rows, columns, self.device)
        counted = torch.ones_like(positive)
        if self.within:
            counted.diagonal(rows.start - columns.start).fill_(False)
        if self.ignored is not None:
            counted &= ~self.ignored.block(rows, columns, self.device)
        return positive & counted, ~positive & counted


@dataclass(frozen=True, eq=False)
class Classes:
    """Examples are similar that are of one class."""

    of_rows: Tensor
    of_columns: Tensor

    def block(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        return self.of_rows[rows, None] == self.of_columns[columns]


@dataclass(frozen=True, eq=False)
class Tags:
    """Examples are similar that share one of their labels: (B, C) and (R, C) booleans."""

    of_rows: Tensor
    of_columns: Tensor

    def block(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        own = self.of_rows[rows].to(torch.float32)
        at_once = max(1, LABELS_AT_ONCE // max(own.shape[1], 1))
        # Sums of products of 0 and 1: above 0 in whatever precision where one of them is.
        others = torch.split(self.of_columns[columns], at_once)
        return torch.cat([own @ some.to(torch.float32).T > 0 for some in others], dim=1)


def read_signs(arguments: Arguments) -> Signs:
    """The signs that the arguments of a call give to their pairs."""
    similar: Matrix | Classes | Tags | None = arguments.similar_matrix
    if similar is None:
        labels, others = arguments.labels, arguments.reference_labels
        assert labels is not None
        others = labels if others is None else others
        if labels.dim() == 2:
            similar = Tags(labels, others)
        else:
            similar = Classes(labels.to(torch.int64), others.to(torch.int64))
    within = arguments.reference is None
    return Signs(similar, arguments.ignore_matrix, within, arguments.embeddings.device)
