"""Uncertainty sets U: which weightings of the pairs the loss is robust to. One set a file.

A set is any object with a method `worst_case(pairs)`, which returns the largest `Σ p l - penalty`
over its weightings p and a p that reaches it. `docs/extend.md` adds one in thirty lines.

`pairs` holds what a set is given and gives back; `by_sign`, `soft_maximum` and `draw` what sets
share.
"""

from drometric.uncertainty.balanced_kl import BalancedKL
from drometric.uncertainty.balanced_top_k import BalancedTopK
from drometric.uncertainty.chi_square import ChiSquare
from drometric.uncertainty.kl import KL
from drometric.uncertainty.pairs import Pairs, UncertaintySet, WorstCase
from drometric.uncertainty.per_anchor_kl import PerAnchorKL
from drometric.uncertainty.simplex import Simplex
from drometric.uncertainty.top_k import TopK
from drometric.uncertainty.uniform import Uniform

__all__ = [
    "KL",
    "BalancedKL",
    "BalancedTopK",
    "ChiSquare",
    "Pairs",
    "PerAnchorKL",
    "Simplex",
    "TopK",
    "UncertaintySet",
    "Uniform",
    "WorstCase",
]
