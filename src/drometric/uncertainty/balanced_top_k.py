"""The K/2 hardest positive and the K/2 hardest negative pairs (DRO-TopK-PN)."""

from __future__ import annotations

from dataclasses import dataclass

from drometric.uncertainty.by_sign import balance
from drometric.uncertainty.pairs import Pairs, WorstCase
from drometric.uncertainty.top_k import check_size, hardest, size


@dataclass(frozen=True)
class BalancedTopK:
    """The K/2 hardest pairs of each sign: the paper's DRO-TopK-PN (section 3.2).

    The ⌊K/2⌋ hardest positive and the K - ⌊K/2⌋ hardest negative pairs, each cut to what there
    is. Each sign has half of the weight, however many pairs it has; where one sign gives no pair
    the other has it all (K = 1 chooses a negative pair only). The paper prints a plain sum over
    at most K pairs and runs their mean: the same while both signs have K/2 pairs. Ties as in
    `TopK`.

    Args:
        k: K itself, or
        per_example: K as a multiple of the number of embeddings, rounded, at least 1.
    """

    k: int | None = None
    per_example: float | None = None

    def __post_init__(self) -> None:
        check_size(self.k, self.per_example)

    def worst_case(self, pairs: Pairs) -> WorstCase:
        k = size(self.k, self.per_example, pairs.row_count)
        return balance(
            pairs, lambda loss: hardest(loss, k // 2), lambda loss: hardest(loss, k - k // 2)
        )
