"""The robust loss without its matrix of pairs: which algorithm finds the worst case of which set.

Every one of them gives what `reference` gives; a set that is not known here goes that way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from drometric.engine import streamed
from drometric.engine.anchor_shares import AnchorShares
from drometric.engine.anchors import Anchors, suits
from drometric.engine.arguments import Arguments
from drometric.engine.at_once import solve_at_once
from drometric.engine.contribution import Contribution, average, evenly, weighted
from drometric.engine.dense import is_small
from drometric.engine.draws import drawn_evenly, drawn_pairs
from drometric.engine.hard import TooManyTiesError, hardest, maximisers, select
from drometric.engine.judged import Judged, joined
from drometric.engine.layout import Layout, in_users_order, read_layout
from drometric.engine.outcome import Outcome
from drometric.engine.per_anchor import soft_maxima
from drometric.engine.problem import BOTH, Problem, scalar_gammas
from drometric.engine.soft import soft_maximum_of
from drometric.engine.spread import Spread
from drometric.engine.strips import solve_by_strips
from drometric.engine.tile_losses import UnboundedError
from drometric.uncertainty import KL, PerAnchorKL

SHARPEST = 1e-12
"""Below this γ only pairs that tie with the hardest have a weight."""


def solve(problem: Problem, arguments: Arguments, *, normalize: bool) -> Outcome | None:
    """The value and the gradients of a robust loss whose set is known.

    None where only the plain path will do.
    """
    if problem.plan.path == "dense":
        outcome = solve_at_once(problem, arguments, normalize=normalize)
        if outcome is not None or is_small(arguments):
            return outcome
    layout = read_layout(arguments, normalize=normalize)
    if layout is None:
        return None
    try:
        return _in_tiles(_Pairs(layout, problem))
    except TooManyTiesError:
        return _streamed(problem, arguments, layout, normalize=normalize)
    except UnboundedError:
        return None
    except CoarseError:
        anchors = len(arguments.embeddings)
        return solve_by_strips(AnchorShares(problem, anchors, normalize), arguments)


def _in_tiles(pairs: _Pairs) -> Outcome:
    """The loss from tiles of pairs."""
    problem, layout = pairs.problem, pairs.layout
    uncertainty: Any = problem.uncertainty
    if problem.hard:
        return pairs.mean_of_hardest(problem.hardest(len(layout.rows)))
    groups = problem.soft_maxima()
    if groups is not None:
        return average(layout, [pairs.soft_maximum(signs, gamma) for signs, gamma in groups])
    if type(uncertainty) is KL:
        return pairs.sampled(uncertainty)
    if type(uncertainty) is PerAnchorKL:
        return pairs.soft_maxima(uncertainty)
    if math.isinf(uncertainty.rho):
        return average(layout, [pairs.soft_maximum(BOTH, 0.0)])
    spread = Spread(layout, problem.pair_loss, uncertainty.rho, problem.plan, drop=problem.drop)
    return average(layout, [spread.contribution()])


def _streamed(
    problem: Problem, arguments: Arguments, layout: Layout, *, normalize: bool
) -> Outcome | None:
    """The loss from all pairs one by one, where it is one of hard choices."""
    if problem.hard:
        unsorted = in_users_order(layout, arguments)
        return streamed.hardest(problem, arguments, unsorted, normalize=normalize)
    groups = problem.soft_maxima()
    if groups is not None and all(gamma < SHARPEST for _, gamma in groups):
        return streamed.maximum(problem, arguments, normalize=normalize)
    return None


class CoarseError(Exception):
    """Float32 can't hold the exponents of a soft maximum, or has no digits for it."""


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The pairs of a layout, for a problem."""

    layout: Layout
    problem: Problem

    @property
    def most(self) -> int:
        """As many pairs as there can be, or more."""
        rows, columns = len(self.layout.rows), len(self.layout.columns)
        return rows * (rows - 1) // 2 if self.layout.within else rows * columns

    def select(self, k: dict[bool, int]) -> dict[bool, Judged]:
        """Pairs of each sign that hold its k hardest."""
        return select(self.layout, self.problem.pair_loss, k, self.problem.plan)

    def mean_of_hardest(self, groups: list[tuple[tuple[bool, ...], int]]) -> Outcome:
        """The mean of the k hardest pairs of each group of signs, averaged."""
        few = {sign: k for signs, k in groups if k < self.most for sign in signs}
        found = self.select(few) if few else {}
        parts = []
        for signs, k in groups:
            if k >= self.most:
                parts.append(self.soft_maximum(signs, math.inf))
            else:
                judged = [found[sign] for sign in signs if sign in found]
                parts.append(self._mean_of_hardest(joined(judged), k) if judged else None)
        return average(self.layout, parts)

    def _mean_of_hardest(self, found: Judged, k: int) -> Contribution | None:
        chosen = hardest(self.layout, self.problem.pair_loss, found, k)
        if self.problem.drop:
            chosen = chosen[chosen.loss > 0]
        count = len(chosen) if self.problem.drop else min(k, len(found))
        return evenly(chosen, count) if count else None

    def maximum(self, signs: tuple[bool, ...]) -> Judged | None:
        """The pairs with the largest loss of all; None where no pair counts."""
        found = self.select(dict.fromkeys(signs, 1))
        if not found:
            return None
        chosen = maximisers(self.layout, self.problem.pair_loss, joined(list(found.values())))
        return None if self.problem.drop and not bool((chosen.loss > 0).any()) else chosen

    def soft_maximum(self, signs: tuple[bool, ...], gamma: float) -> Contribution | None:
        """`γ log mean e^{l/γ}` over the signs."""
        if gamma < SHARPEST:
            chosen = self.maximum(signs)
            return None if chosen is None else evenly(chosen, len(chosen))
        problem = self.problem
        return soft_maximum_of(
            self.layout, problem.pair_loss, signs, gamma, problem.plan, drop=problem.drop
        )

    def sampled(self, uncertainty: KL) -> Outcome:
        """The mean of pairs drawn from p*."""
        gamma, sample, generator = uncertainty.gamma, uncertainty.sample, uncertainty.generator
        assert sample is not None
        if gamma < SHARPEST:
            hardest = self.maximum(BOTH)
            drawn = None if hardest is None else drawn_evenly(hardest, sample, generator)
        else:
            problem = self.problem
            drawn = drawn_pairs(
                self.layout,
                problem.pair_loss,
                gamma,
                sample,
                generator,
                problem.plan,
                drop=problem.drop,
            )
        return average(self.layout, [None if drawn is None else weighted(*drawn, sample)])

    def soft_maxima(self, uncertainty: PerAnchorKL) -> Outcome:
        """A soft maximum for every anchor and sign."""
        layout, pair_loss, slack = self.layout, self.problem.pair_loss, uncertainty.slack
        gammas = scalar_gammas(uncertainty)
        if gammas is None or not suits(layout, pair_loss, gammas, slack=slack):
            raise CoarseError
        plan, drop = self.problem.plan, self.problem.drop
        anchors = Anchors(layout, pair_loss, gammas, plan, slack=slack, drop=drop)
        return soft_maxima(anchors, slack=slack, mean=uncertainty.reduction == "mean")
