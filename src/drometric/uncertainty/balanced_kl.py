"""KL inside each sign, the two signs weighing the same."""

from __future__ import annotations

from dataclasses import dataclass

from drometric.checks import number
from drometric.uncertainty.by_sign import balance
from drometric.uncertainty.kl import kl_worst_case
from drometric.uncertainty.pairs import Pairs, WorstCase


@dataclass(frozen=True)
class BalancedKL:
    """A soft maximum of each sign, averaged: to `KL` what `BalancedTopK` is to `TopK`.

    `½ γ+ log mean_P e^{l/γ+} + ½ γ- log mean_N e^{l/γ-}`; where one sign is absent the other
    weighs 1. The exact form of what the authors' code samples "balanced between the signs".

    Args:
        gamma_positive: γ+ from 0 (the hardest positive pair) to ∞ (their mean).
        gamma_negative: γ-, the same for negative pairs.
    """

    gamma_positive: float = 0.1
    gamma_negative: float = 0.1

    def __post_init__(self) -> None:
        number("gamma_positive", self.gamma_positive, at_least=0.0, infinite=True)
        number("gamma_negative", self.gamma_negative, at_least=0.0, infinite=True)

    def worst_case(self, pairs: Pairs) -> WorstCase:
        return balance(
            pairs,
            lambda loss: kl_worst_case(loss, self.gamma_positive),
            lambda loss: kl_worst_case(loss, self.gamma_negative),
        )
