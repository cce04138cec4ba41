"""The value and the gradients of a loss over anchors, from strips of all similarities.

A strip is some anchors with all columns. Of everything that grows with the number of pairs there
is one strip at a time; besides it, the vectors and their gradients in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drometric.engine.arguments import Arguments
from drometric.engine.batch import Examples, read_examples
from drometric.engine.outcome import Outcome
from drometric.engine.rows import Rows, in_blocks
from drometric.engine.share import Shared, denominator

SIMILARITIES_AT_ONCE = 2**22


def solve_by_strips(
    loss: Shared,
    arguments: Arguments,
    *,
    at_once: int | None = None,
    wanted: tuple[bool, bool] = (True, True),
) -> Outcome:
    """What the loss gives, from strips of `at_once` anchors: by default of some 32 MiB each.

    Args:
        wanted: whether embeddings and reference are to have a gradient.
    """
    with torch.no_grad(), torch.autocast(arguments.embeddings.device.type, enabled=False):
        examples = read_examples(arguments, normalize=loss.normalize)
        if not loss.by_anchor:
            at_once = max(1, len(examples.rows))
        elif at_once is None:
            at_once = max(1, SIMILARITIES_AT_ONCE // max(examples.columns.vector.shape))
        return _Sums(examples, wanted).add(loss, at_once).outcome(arguments.dtype)


class _Sums:
    """The totals of the strips so far."""

    def __init__(self, examples: Examples, wanted: tuple[bool, bool]) -> None:
        rows, columns = examples.rows.vector, examples.columns.vector
        self.examples = examples
        self.total = rows.new_zeros(())
        self.terms: int | Tensor = 0
        self.of_rows = torch.zeros_like(rows) if wanted[0] else None
        if examples.signs.within:
            self.of_columns = self.of_rows
        else:
            self.of_columns = torch.zeros_like(columns) if wanted[1] else None

    def add(self, loss: Shared, at_once: int) -> _Sums:
        size, columns = len(self.examples.rows), self.examples.columns.vector
        # An empty batch has one strip, too, of no anchors: a loss may have something to refuse.
        for start in range(0, max(size, 1), at_once):
            anchors = slice(start, min(start + at_once, size))
            strip = self.examples.strip(anchors)
            share = loss.share(strip)
            self.total += share.total
            self.terms = self.terms + share.terms
            if self.of_rows is not None:
                self.of_rows[anchors].addmm_(share.slope, columns)
            if self.of_columns is not None:
                self.of_columns.addmm_(share.slope.T, strip.rows.vector)
        return self

    def outcome(self, dtype: torch.dtype) -> Outcome:
        size = denominator(self.terms, self.total)
        rows, columns = self.examples.rows, self.examples.columns
        of_reference = None if self.examples.signs.within else self.of_columns
        return Outcome(
            self.total / size,
            _gradient(rows, self.of_rows, size, dtype),
            _gradient(columns, of_reference, size, dtype),
        )


def _gradient(rows: Rows, slope: Tensor | None, size: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The gradient in the rows as they were given, from sums over the strips in their vectors."""
    if slope is None:
        return None
    gradient, largest = torch.empty_like(slope, dtype=dtype), torch.finfo(dtype).max
    for some in in_blocks(*slope.shape):
        pulled = rows.take(some).pull_back(slope[some] / size)
        gradient[some] = pulled.clamp_(-largest, largest)
    return gradient
