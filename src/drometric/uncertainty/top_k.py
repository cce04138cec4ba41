"""U = {Σ p = 1, 0 ≤ p ≤ 1/K}: the mean of the K hardest pairs (DRO-TopK)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.checks import number, whole
from drometric.uncertainty.pairs import Pairs, WorstCase


@dataclass(frozen=True)
class TopK:
    """The mean of the K largest losses: the paper's DRO-TopK (section 3.2; Fan et al. 2017).

    In its convex reading, U = {Σ p = 1, 0 ≤ p ≤ 1/K}, the value is the conditional value at risk
    (CVaR) of the losses at level K/n: `min over t of t + Σ [l - t]+ / K`.

    K counts unordered pairs and is cut to n, the pairs there are. Pairs with zero loss count in
    the mean. The K hardest are the ones that float64 gives: largest loss first, ties by the
    smallest row, then the smallest column, whatever the dtype of the embeddings.

    Args:
        k: K itself, or
        per_example: K as a multiple of the number of embeddings, rounded, at least 1 (the
            paper's studies use K = 2 B). With a reference, its rows are not counted.
    """

    k: int | None = None
    per_example: float | None = None

    def __post_init__(self) -> None:
        check_size(self.k, self.per_example)

    def worst_case(self, pairs: Pairs) -> WorstCase:
        return hardest(pairs.loss, size(self.k, self.per_example, pairs.row_count))


def check_size(k: int | None, per_example: float | None) -> None:
    """Exactly one of the two ways to say K, and a K that is at least 1."""
    if (k is None) == (per_example is None):
        raise ValueError(
            f"give either k= or per_example=; got k={k!r} and per_example={per_example!r}"
        )
    if k is not None:
        whole("k", k)
    if per_example is not None:
        number("per_example", per_example, above=0.0)


def size(k: int | None, per_example: float | None, rows: int) -> int:
    """K for a batch of `rows` embeddings."""
    if per_example is not None:
        # As many as there can be is enough: a product that overflows is not to be rounded.
        return max(1, round(min(per_example * rows, 2.0**62)))
    assert k is not None
    return k


def hardest(loss: Tensor, k: int) -> WorstCase:
    """The mean of the k largest losses (all, if there are fewer), earlier pairs first in ties."""
    chosen = torch.sort(loss, descending=True, stable=True).indices[: min(k, len(loss))]
    weight = torch.zeros_like(loss)
    weight[chosen] = 1 / max(len(chosen), 1)
    return WorstCase((weight * loss).sum(), weight)
