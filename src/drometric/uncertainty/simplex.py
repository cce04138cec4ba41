"""U = the whole simplex: the single hardest pair."""

from __future__ import annotations

from dataclasses import dataclass

from drometric.uncertainty.pairs import Pairs, WorstCase
from drometric.uncertainty.top_k import hardest


@dataclass(frozen=True)
class Simplex:
    """All the weight on the single hardest pair: the maximal loss.

    U = {p ≥ 0, Σ p = 1} (section 3.1; Shalev-Shwartz and Wexler 2016). The same as `TopK(k=1)`;
    of equally hard pairs the first by row, then by column. It suffers from outliers; see `TopK`.
    """

    def worst_case(self, pairs: Pairs) -> WorstCase:
        return hardest(pairs.loss, 1)
