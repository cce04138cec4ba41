"""Hard selection where no screen tells pairs apart: all are compared, some rows at a time.

The similarities are those of `reference`, so that heaps of equal losses are in its order, too. It
takes many times as long as screening, and as little memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.engine.arguments import Arguments
from drometric.engine.batch import Batch, Examples, read_examples
from drometric.engine.contribution import average, evenly
from drometric.engine.judged import Judged
from drometric.engine.layout import Layout
from drometric.engine.outcome import Outcome
from drometric.engine.pair_list import PairList, by_place
from drometric.engine.problem import Problem
from drometric.engine.share import Share
from drometric.engine.strips import solve_by_strips
from drometric.pair_losses import evaluate

SIMILARITIES_AT_ONCE = 2**21


def hardest(
    problem: Problem, arguments: Arguments, unsorted: Layout, *, normalize: bool
) -> Outcome:
    """The mean of the hardest pairs, in a layout in the user's order."""
    chosen = selected(problem, arguments, normalize=normalize)
    return average(unsorted, [evenly(judged, len(judged)) for judged in chosen])


def selected(problem: Problem, arguments: Arguments, *, normalize: bool) -> list[Judged]:
    """The pairs that a hard set selects: of each group of signs, or of all pairs together."""
    examples = read_examples(arguments, normalize=normalize)
    groups = problem.hardest(len(examples.rows))
    kept: list[Judged | None] = [None] * len(groups)
    for judged in _strips(problem, examples):
        for place, (signs, k) in enumerate(groups):
            new = judged if len(signs) == 2 else judged[judged.positive == signs[0]]
            kept[place] = _first(kept[place], new, k)
    found = [judged for judged in kept if judged is not None and len(judged)]
    return [judged[by_place(judged.pairs.row, judged.pairs.column)] for judged in found]


def selected_weights(
    problem: Problem, arguments: Arguments, *, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs that a hard set selects, by row and column, and their weights."""
    chosen = selected(problem, arguments, normalize=normalize)
    device = arguments.embeddings.device
    row, column = torch.zeros(2, 0, dtype=torch.int64, device=device)
    weight = torch.zeros(0, dtype=torch.float64, device=device)
    for judged in chosen:
        each = torch.full_like(judged.loss, 1 / (len(judged) * len(chosen)))
        row = torch.cat((row, judged.pairs.row))
        column = torch.cat((column, judged.pairs.column))
        weight = torch.cat((weight, each))
    order = by_place(row, column)
    return row[order], column[order], weight[order].to(arguments.dtype)


def _strips(problem: Problem, examples: Examples) -> Iterator[Judged]:
    """All pairs that count, by row and column, those of some rows at a time."""
    for batch in _batches(examples):
        row, column = batch.unordered.nonzero(as_tuple=True)
        positive = batch.positive[row, column]
        loss, slope = evaluate(problem.pair_loss, batch.similarity[row, column], positive)
        judged = Judged(PairList(row + batch.first_row, column), positive, loss, slope)
        yield judged[loss > 0] if problem.drop else judged


def _batches(examples: Examples) -> Iterator[Batch]:
    at_once = max(1, SIMILARITIES_AT_ONCE // max(examples.columns.vector.shape))
    for start in range(0, len(examples.rows), at_once):
        yield examples.strip(slice(start, min(start + at_once, len(examples.rows))))


def _first(kept: Judged | None, new: Judged, k: int) -> Judged:
    """The k hardest of pairs that come one after the other, of equal ones the first."""
    if kept is None:
        together = new
    else:
        both = (kept, new)
        together = Judged(
            PairList(
                torch.cat([part.pairs.row for part in both]),
                torch.cat([part.pairs.column for part in both]),
            ),
            torch.cat([part.positive for part in both]),
            torch.cat([part.loss for part in both]),
            torch.cat([part.slope for part in both]),
        )
    return together[together.loss.argsort(stable=True, descending=True)[:k]]


def maximum(problem: Problem, arguments: Arguments, *, normalize: bool) -> Outcome:
    """The largest loss of each group of signs, averaged; all pairs that have it weigh the same."""
    groups = problem.soft_maxima()
    assert groups is not None
    examples = read_examples(arguments, normalize=normalize)
    tops = [Top(signs, -math.inf, 0) for signs, _ in groups]
    for batch in _batches(examples):
        loss, _, counted = _matrices(problem, batch)
        tops = [top.raised(loss, counted(top.signs)) for top in tops]
    found = [top for top in tops if top.count]
    return solve_by_strips(TiedShares(problem, found, normalize), arguments)


def _matrices(
    problem: Problem, batch: Batch
) -> tuple[Tensor, Tensor, Callable[[tuple[bool, ...]], Tensor]]:
    """Losses and slopes of a strip's ordered pairs, and which of them are of some signs."""
    loss, slope = torch.zeros_like(batch.similarity), torch.zeros_like(batch.similarity)
    counted = batch.positive | batch.negative
    of_pairs = evaluate(problem.pair_loss, batch.similarity[counted], batch.positive[counted])
    loss[counted], slope[counted] = of_pairs
    kept = counted & (loss > 0) if problem.drop else counted

    def of_signs(signs: tuple[bool, ...]) -> Tensor:
        return kept if len(signs) == 2 else kept & (batch.positive == signs[0])

    return loss, slope, of_signs


@dataclass(frozen=True)
class Top:
    """The largest loss of some signs' pairs, and how many ordered pairs have it."""

    signs: tuple[bool, ...]
    loss: float
    count: int

    def raised(self, loss: Tensor, counted: Tensor) -> Top:
        """The same with more pairs looked at."""
        highest = float(loss.masked_fill(~counted, -math.inf).amax())
        top = max(highest, self.loss)
        before = self.count if top == self.loss else 0
        return Top(self.signs, top, before + int(((loss == top) & counted).sum()))


@dataclass(frozen=True, eq=False)
class TiedShares:
    """What every anchor adds to the mean of the largest losses."""

    problem: Problem
    tops: list[Top]
    normalize: bool
    by_anchor = True

    def share(self, strip: Batch) -> Share:
        """The share of the strip's anchors."""
        loss, slope, counted = _matrices(self.problem, strip)
        weight = torch.zeros_like(loss)
        for top in self.tops:
            hit = (loss == top.loss) & counted(top.signs)
            weight += hit.to(loss.dtype) / (top.count * len(self.tops))
        return Share((weight * loss).sum(), 0, weight.mul_(slope))
