"""The framework as the paper writes it: all pairs, all losses, the worst weighting, the slopes.

Slow and plain on purpose. It is what the fast paths are tested against.
"""

from __future__ import annotations

import torch

from drometric.checks import shapes
from drometric.engine.batch import Batch
from drometric.engine.solution import Solution
from drometric.pair_losses import PairLoss, evaluate
from drometric.uncertainty.pairs import Pairs, UncertaintySet, WorstCase


def solve(
    batch: Batch, pair_loss: PairLoss, uncertainty: UncertaintySet, *, drop_zero_loss: bool
) -> Solution:
    """F(θ) = max over p in U of Σ p_ij l_ij(θ), eq. (1), and its slopes p* l'."""
    row, column = batch.unordered.nonzero(as_tuple=True)
    positive = batch.positive[row, column]
    similarity = batch.similarity[row, column]
    loss, slope = evaluate(pair_loss, similarity, positive)

    pairs = Pairs(
        loss=loss,
        positive=positive,
        row=row,
        column=column,
        row_count=batch.similarity.shape[0],
        column_count=batch.similarity.shape[1],
        within=batch.within,
        labels=batch.labels,
        reference_labels=batch.reference_labels,
    )
    kept = loss > 0 if drop_zero_loss else torch.ones_like(positive)
    value, weight = loss.new_zeros(()), torch.zeros_like(loss)
    if bool(kept.any()):
        value, weight[kept] = _worst_case(uncertainty, pairs.keep(kept))

    def as_matrix(entries: torch.Tensor) -> torch.Tensor:
        matrix = entries.new_zeros(batch.similarity.shape)
        matrix[row, column] = entries
        return matrix

    return Solution(
        value=value,
        slope=as_matrix(weight * slope),
        weight=as_matrix(weight),
        active=as_matrix(loss > 0),
    )


def _worst_case(uncertainty: UncertaintySet, pairs: Pairs) -> WorstCase:
    """The set's answer, checked: a set may be the user's."""
    answer = uncertainty.worst_case(pairs)
    if not isinstance(answer, WorstCase) or shapes(answer) != f"(), ({len(pairs)},)":
        raise ValueError(
            f"{type(uncertainty).__name__}.worst_case must return WorstCase(value, weight), a "
            f"scalar tensor and a vector with one weight per pair ({len(pairs)}); got "
            f"{shapes(answer)}"
        )
    return WorstCase(*(part.to(pairs.loss) for part in answer))
