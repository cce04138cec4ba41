"""One call's examples, checked: their similarities, and which pairs are positive or negative."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from drometric.engine.arguments import Arguments
from drometric.engine.rows import Rows, read_rows
from drometric.engine.signs import Signs, read_signs


@dataclass(frozen=True, eq=False)
class Batch:
    """Two sets of examples (within one batch, the same set twice) and the pairs between them.

    A strip is a batch, too: B of the rows, the anchors, with all R columns.
    """

    rows: Rows
    columns: Rows
    within: bool
    """True for pairs within one batch, False for pairs across two sets."""
    similarity: Tensor
    """(B, R), float64."""
    positive: Tensor
    """(B, R), True for an ordered pair that is similar. Of a whole batch it is symmetric."""
    negative: Tensor
    """(B, R), True for an ordered pair that is not. Ignored pairs and self-pairs are neither."""
    labels: Tensor | None
    """The labels of the rows; None with `similar=`."""
    reference_labels: Tensor | None
    """The labels of the columns."""
    first_row: int = 0
    """Of a strip, the number of its first row: within a batch, also that row's column."""

    @property
    def unordered(self) -> Tensor:
        """(B, R), True once for each pair that counts: within a batch, above the diagonal."""
        counted = self.positive | self.negative
        return counted.triu(self.first_row + 1) if self.within else counted

    @property
    def squared_distance(self) -> Tensor:
        """(B, R), squared Euclidean distances between the vectors that are compared."""
        lengths = self.rows.squared_length() + self.columns.squared_length().T
        squared = lengths.sub_(self.similarity, alpha=2).clamp_(min=0)
        if not self.rows.normalized and not bool(squared.isfinite().all()):
            raise ValueError(
                "embeddings are too large for normalize=False: their squared distances overflow "
                "float64"
            )
        return squared


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of one call, from which batches are read."""

    rows: Rows
    columns: Rows
    signs: Signs
    labels: Tensor | None
    reference_labels: Tensor | None

    def strip(self, anchors: slice) -> Batch:
        """Some of the rows against all columns."""
        rows = self.rows.take(anchors)
        similarity = rows.similarity(self.columns)
        if not rows.normalized and not bool(similarity.isfinite().all()):
            raise ValueError(
                "embeddings are too large for normalize=False: their similarities overflow float64"
            )
        positive, negative = self.signs.block(anchors, slice(0, len(self.columns)))
        return Batch(
            rows=rows,
            columns=self.columns,
            within=self.signs.within,
            similarity=similarity,
            positive=positive,
            negative=negative,
            labels=None if self.labels is None else self.labels[anchors],
            reference_labels=self.reference_labels,
            first_row=anchors.start,
        )


def read_examples(arguments: Arguments, *, normalize: bool) -> Examples:
    """The rows and columns of a call, made ready to be compared."""
    rows = read_rows(arguments.embeddings, normalize=normalize)
    within = arguments.reference is None
    return Examples(
        rows=rows,
        columns=rows if within else read_rows(arguments.columns, normalize=normalize),
        signs=read_signs(arguments),
        labels=arguments.labels,
        reference_labels=arguments.labels if within else arguments.reference_labels,
    )


def read_batch(arguments: Arguments, *, normalize: bool) -> Batch:
    """Compare all rows with all columns."""
    examples = read_examples(arguments, normalize=normalize)
    return examples.strip(slice(0, len(examples.rows)))
