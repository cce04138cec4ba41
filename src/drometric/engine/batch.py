"""One call's examples, checked: their similarities, and which pairs are positive or negative."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.engine.arguments import Arguments
from drometric.engine.rows import Rows, read_rows


@dataclass(frozen=True, eq=False)
class Batch:
    """Two sets of examples (within one batch, the same set twice) and the pairs between them."""

    rows: Rows
    columns: Rows
    within: bool
    """True for pairs within one batch, False for pairs across two sets."""
    similarity: Tensor
    """(B, R), float64."""
    positive: Tensor
    """(B, R), True for an ordered pair that is similar. Within a batch it is symmetric."""
    negative: Tensor
    """(B, R), True for an ordered pair that is not. Ignored pairs and self-pairs are neither."""
    labels: Tensor | None
    reference_labels: Tensor | None

    @property
    def unordered(self) -> Tensor:
        """(B, R), True once for each pair that counts: within a batch, above the diagonal."""
        counted = self.positive | self.negative
        return counted.triu(1) if self.within else counted

    @property
    def squared_distance(self) -> Tensor:
        """(B, R), squared Euclidean distances between the vectors that are compared."""
        lengths = self.rows.squared_length() + self.columns.squared_length().T
        squared = (lengths - 2 * self.similarity).clamp(min=0)
        if not bool(squared.isfinite().all()):
            raise ValueError(
                "embeddings are too large for normalize=False: their squared distances overflow "
                "float64"
            )
        return squared


def read_batch(arguments: Arguments, *, normalize: bool) -> Batch:
    """Compare all rows with all columns."""
    rows = read_rows(arguments.embeddings, normalize=normalize)
    within = arguments.reference is None
    columns = rows if within else read_rows(arguments.columns, normalize=normalize)
    similarity = rows.similarity(columns)
    if not normalize and not bool(similarity.isfinite().all()):
        raise ValueError(
            "embeddings are too large for normalize=False: their similarities overflow float64"
        )
    positive = arguments.similar_pairs()
    counted = torch.ones_like(positive)
    if within:
        counted.fill_diagonal_(False)
    if arguments.ignore is not None:
        counted &= ~arguments.ignore
    return Batch(
        rows=rows,
        columns=columns,
        within=within,
        similarity=similarity,
        positive=positive & counted,
        negative=~positive & counted,
        labels=arguments.labels,
        reference_labels=arguments.labels if within else arguments.reference_labels,
    )
