"""The χ² ball around the uniform weighting: mean plus spread (the variance regulariser)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.checks import number
from drometric.uncertainty.pairs import Pairs, WorstCase


@dataclass(frozen=True)
class ChiSquare:
    """The worst weighting within a χ² ball: U = {p ≥ 0, Σ p = 1, Σ (n p - 1)² ≤ 2ρ}.

    The φ-divergence ball of section 3.1, φ(t) = ½ (t - 1)² (Namkoong and Duchi 2017), over the n
    unordered pairs. While no weight is pushed below 0, which is while
    `ρ ≤ n Var / (2 (mean - min l)²)`, the value is `mean + sqrt(2ρ Var / n)` with the biased
    variance. Past that the easiest pairs drop out and the rest is solved again, exactly; from
    `ρ ≥ n (n/k - 1) / 2` on only the k maximisers are left. Equal losses weigh the same.

    Args:
        rho: ρ, the radius, from 0 (the mean) to ∞ (the maximum).
    """

    rho: float

    def __post_init__(self) -> None:
        number("rho", self.rho, at_least=0.0, infinite=True)

    def worst_case(self, pairs: Pairs) -> WorstCase:
        return chi_square_worst_case(pairs.loss, self.rho, len(pairs))


def chi_square_worst_case(loss: Tensor, rho: float, n: int) -> WorstCase:
    """The worst case over n pairs, of which `loss` has all that keep a weight, or more."""
    cut, top = _cut(loss, rho, n), loss.max()
    hard = loss >= cut
    m = int(hard.sum())
    if bool(cut == top):
        return WorstCase(top, hard.to(loss) / m)
    # From 0 at the top to -1 at the cut, so that neither rounding nor underflow tells.
    excess = torch.where(hard, (loss - top) / (top - cut), 0.0)
    mean = excess.sum() / m
    deviation = torch.where(hard, excess - mean, 0.0)
    # Σp² - 1/m, what the ball leaves for uneven weights, without cancellation at m = n.
    room = max((m - n) / (n * m) + 2 * rho / n**2, 0.0)
    spread = deviation.square().sum()
    step = (room / spread).sqrt()
    weight = torch.where(hard, (1 / m + step * deviation).clamp(min=0), 0.0)
    return WorstCase(top + (top - cut) * (mean + step * spread), weight)


def _cut(loss: Tensor, rho: float, n: int) -> Tensor:
    """The smallest loss that keeps a weight.

    The solution is p ∝ [l - η]+ for one η, and its Σp² grows with η from 1/n to 1/k. So the
    losses above η are found by bisection over the sorted losses, each of them tried as η.
    """
    ordered = loss.sort(descending=True).values
    tied = int((ordered == ordered[0]).sum())
    budget = 1 / n + 2 * rho / n**2
    if budget >= 1 / tied:
        return ordered[0]
    few, many = tied, len(loss)  # at least `few` losses keep a weight, at most `many`
    while few < many:
        middle = (few + many) // 2
        above = (ordered - ordered[middle]).clamp(min=0)
        # Scaled, so that squares of tiny gaps do not underflow.
        above = above / above[0]
        if float(above.square().sum() / above.sum().square()) > budget:
            few = middle + 1
        else:
            many = middle
    return ordered[few - 1]
