"""What a robust loss asks of the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from drometric.engine.plan import Plan
from drometric.pair_losses import PairLoss
from drometric.uncertainty import (
    KL,
    BalancedKL,
    BalancedTopK,
    ChiSquare,
    PerAnchorKL,
    Simplex,
    TopK,
    Uniform,
)
from drometric.uncertainty.top_k import size

BOTH = (True, False)

HARD = (Simplex, TopK, BalancedTopK)

KNOWN = (*HARD, Uniform, KL, BalancedKL, PerAnchorKL, ChiSquare)
"""The sets that there are algorithms for: exactly these, since a child may weigh differently."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The robust loss that is to be found, and how."""

    pair_loss: PairLoss
    uncertainty: Any
    drop: bool
    """Whether pairs without a loss are left out."""
    plan: Plan

    @property
    def known(self) -> bool:
        """Whether there is another way than the plain one; the pair loss must be monotone."""
        return type(self.uncertainty) in KNOWN and getattr(self.pair_loss, "monotone", True)

    @property
    def hard(self) -> bool:
        """Whether the set selects pairs."""
        return type(self.uncertainty) in HARD

    def hardest(self, rows: int) -> list[tuple[tuple[bool, ...], int]]:
        """How many of the hardest pairs of which signs a hard set takes."""
        if isinstance(self.uncertainty, Simplex):
            return [(BOTH, 1)]
        k = size(self.uncertainty.k, self.uncertainty.per_example, rows)
        if isinstance(self.uncertainty, TopK):
            return [(BOTH, k)]
        return [
            ((sign,), count)
            for sign, count in zip(BOTH, (k // 2, k - k // 2), strict=True)
            if count
        ]

    def soft_maxima(self) -> list[tuple[tuple[bool, ...], float]] | None:
        """Of which signs with which γ the loss is the mean of soft maxima; None if it isn't."""
        found = self.uncertainty
        kind = type(found)
        if kind is Uniform:
            return [(BOTH, math.inf)]
        if kind is KL and found.sample is None:
            return [(BOTH, found.gamma)]
        if kind is BalancedKL:
            return [((True,), found.gamma_positive), ((False,), found.gamma_negative)]
        return None


def scalar_gammas(uncertainty: PerAnchorKL) -> dict[bool, float] | None:
    """Its γ of each sign; None if one has an entry for each anchor."""
    gammas = (uncertainty.gamma_positive, uncertainty.gamma_negative)
    if any(isinstance(gamma, Tensor) for gamma in gammas):
        return None
    return {sign: float(gamma) for sign, gamma in zip(BOTH, gammas, strict=True)}
