"""The robust loss without its matrix of pairs: which algorithm finds the worst case of which set.

Every one of them gives what `reference` gives; a set that is not known here goes that way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from drometric.engine.gradient import Gradient
from drometric.engine.hard import hardest, maximisers, select
from drometric.engine.judged import Judged, joined
from drometric.engine.layout import Layout
from drometric.engine.outcome import Outcome
from drometric.engine.per_anchor import soft_maxima
from drometric.engine.plan import Plan
from drometric.engine.soft import Share, soft_maximum_of
from drometric.pair_losses import PairLoss
from drometric.uncertainty import KL, BalancedKL, BalancedTopK, PerAnchorKL, Simplex, TopK, Uniform
from drometric.uncertainty.top_k import size

BOTH = (True, False)

SHARPEST = 1e-12
"""Below this γ only pairs that tie with the hardest have a weight."""


class TooManyTiesError(Exception):
    """No screen could tell the pairs apart: they have to be compared one by one."""


def knows(uncertainty: object, pair_loss: object) -> bool:
    """Whether there is an algorithm for a set; the pair loss must be monotone."""
    return type(uncertainty) in SOLVERS and getattr(pair_loss, "monotone", True)


def solve(
    layout: Layout, pair_loss: PairLoss, uncertainty: Any, plan: Plan, *, drop: bool
) -> Outcome | None:
    """The value and the gradients of a robust loss whose set is one of `SOLVERS`.

    None where its parameters or its ties ask for the similarities of `rows`.
    """
    try:
        return SOLVERS[type(uncertainty)](_Problem(layout, pair_loss, plan, drop), uncertainty)
    except TooManyTiesError:
        return None


class _Problem:
    """A layout with the losses of its pairs."""

    def __init__(self, layout: Layout, pair_loss: PairLoss, plan: Plan, drop: bool) -> None:
        self.layout, self.pair_loss, self.plan, self.drop = layout, pair_loss, plan, drop

    @property
    def most(self) -> int:
        """As many pairs as there can be, or more."""
        rows, columns = len(self.layout.rows), len(self.layout.columns)
        return rows * (rows - 1) // 2 if self.layout.within else rows * columns

    def select(self, k: dict[bool, int]) -> dict[bool, Judged]:
        found = select(self.layout, self.pair_loss, k, self.plan)
        if found is None:
            raise TooManyTiesError
        return found

    def mean_of_hardest(self, found: Judged, k: int) -> Share | None:
        """The mean of the k hardest of some pairs."""
        chosen = hardest(self.layout, self.pair_loss, found, k)
        if self.drop:
            chosen = chosen[chosen.loss > 0]
        count = len(chosen) if self.drop else min(k, len(found))
        return _evenly(chosen, count) if count else None

    def maximum(self, signs: tuple[bool, ...]) -> Share | None:
        """The largest loss of the signs, all that have it weighing the same."""
        found = self.select(dict.fromkeys(signs, 1))
        if not found:
            return None
        chosen = maximisers(self.layout, self.pair_loss, joined(list(found.values())))
        if self.drop and not bool((chosen.loss > 0).any()):
            return None
        return _evenly(chosen, len(chosen))

    def soft_maximum(self, signs: tuple[bool, ...], gamma: float) -> Share | None:
        """`γ log mean e^{l/γ}` over the signs."""
        if gamma < SHARPEST:
            return self.maximum(signs)
        layout, plan = self.layout, self.plan
        return soft_maximum_of(layout, self.pair_loss, signs, gamma, plan, drop=self.drop)

    def average(self, shares: list[Share | None]) -> Outcome:
        """Shares that weigh the same; one without pairs leaves its weight to the others."""
        present = [share for share in shares if share is not None]
        gradient = next((share.gradient for share in present if share.gradient), None)
        gradient = gradient or Gradient(self.layout)
        value = 0.0
        for share in present:
            if share.gradient is gradient:
                gradient.scale(share.factor / len(present))
        for share in present:
            value += share.value / len(present)
            if share.gradient is not None and share.gradient is not gradient:
                gradient.add(share.gradient, share.factor / len(present))
            if share.listed is not None and share.slope is not None:
                gradient.add_list(share.listed.pairs, share.slope / len(present))
        device = self.layout.rows.vector.device
        return gradient.outcome(torch.tensor(value, dtype=torch.float64, device=device))


def _evenly(chosen: Judged, count: int) -> Share:
    """The sum of some losses, divided by `count`."""
    return Share(float(chosen.loss.sum()) / count, chosen, chosen.slope / count, None, 1.0)


def _top_k(problem: _Problem, uncertainty: TopK) -> Outcome:
    k = size(uncertainty.k, uncertainty.per_example, len(problem.layout.rows))
    return _hardest_of_all(problem, k)


def _hardest_of_all(problem: _Problem, k: int) -> Outcome:
    if k >= problem.most:
        return problem.average([problem.soft_maximum(BOTH, math.inf)])
    found = list(problem.select(dict.fromkeys(BOTH, k)).values())
    return problem.average([problem.mean_of_hardest(joined(found), k) if found else None])


def _balanced_top_k(problem: _Problem, uncertainty: BalancedTopK) -> Outcome:
    k = size(uncertainty.k, uncertainty.per_example, len(problem.layout.rows))
    wanted = {sign: count for sign, count in ((True, k // 2), (False, k - k // 2)) if count}
    few = {sign: count for sign, count in wanted.items() if count < problem.most}
    shares = [problem.soft_maximum((sign,), math.inf) for sign in wanted if sign not in few]
    found = problem.select(few) if few else {}
    shares += [problem.mean_of_hardest(judged, few[sign]) for sign, judged in found.items()]
    return problem.average(shares)


def _kl(problem: _Problem, uncertainty: KL) -> Outcome:
    return problem.average([problem.soft_maximum(BOTH, uncertainty.gamma)])


def _balanced_kl(problem: _Problem, uncertainty: BalancedKL) -> Outcome:
    gammas = {True: uncertainty.gamma_positive, False: uncertainty.gamma_negative}
    return problem.average([problem.soft_maximum((sign,), g) for sign, g in gammas.items()])


def _per_anchor_kl(problem: _Problem, uncertainty: PerAnchorKL) -> Outcome | None:
    gammas = {True: uncertainty.gamma_positive, False: uncertainty.gamma_negative}
    if any(isinstance(gamma, Tensor) for gamma in gammas.values()):
        return None
    anchors = max(len(problem.layout.rows), 1)
    return soft_maxima(
        problem.layout,
        problem.pair_loss,
        {sign: float(gamma) for sign, gamma in gammas.items()},
        problem.plan,
        slack=uncertainty.slack,
        drop=problem.drop,
        scale=1 / anchors if uncertainty.reduction == "mean" else 1.0,
    )


SOLVERS: dict[type, Callable[[_Problem, Any], Outcome | None]] = {
    Uniform: lambda problem, _: problem.average([problem.soft_maximum(BOTH, math.inf)]),
    Simplex: lambda problem, _: _hardest_of_all(problem, 1),
    TopK: _top_k,
    BalancedTopK: _balanced_top_k,
    KL: _kl,
    BalancedKL: _balanced_kl,
    PerAnchorKL: _per_anchor_kl,
}
