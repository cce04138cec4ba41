"""The robust loss of a small batch: which formula finds the worst case of which set."""

from __future__ import annotations

from drometric.engine.arguments import Arguments
from drometric.engine.dense import (
    doubtful,
    hardest,
    is_small,
    knows,
    read_dense,
    sampled,
    soft_maximum,
    spread,
)
from drometric.engine.dense_anchors import DenseAnchors
from drometric.engine.outcome import Outcome
from drometric.engine.per_anchor import soft_maxima
from drometric.engine.problem import Problem, scalar_gammas
from drometric.uncertainty import KL, ChiSquare, PerAnchorKL

SHARPEST = 1e-6
"""Below this γ rounding decides who shares the weight."""

GENTLEST = 100.0
"""Above this γ an anchor's soft maximum loses digits in float32."""


def solve_at_once(problem: Problem, arguments: Arguments, *, normalize: bool) -> Outcome | None:
    """The value and the gradients; None where there is no short cut, or rounding may decide."""
    if not knows(problem.pair_loss):
        return None
    if problem.hard:
        return _hardest(problem, arguments, normalize=normalize)
    if type(problem.uncertainty) is PerAnchorKL:
        return _soft_maxima(problem, problem.uncertainty, arguments, normalize=normalize)
    if type(problem.uncertainty) in (KL, ChiSquare) and problem.soft_maxima() is None:
        return _one_by_one(problem, arguments, normalize=normalize)
    groups = problem.soft_maxima()
    if groups is None or min(gamma for _, gamma in groups) < SHARPEST:
        return None
    dense = read_dense(arguments, normalize=normalize)
    if dense is None or (problem.drop and doubtful(dense, problem.pair_loss)):
        return None
    masks = [(dense.pairs(signs), gamma) for signs, gamma in groups]
    return soft_maximum(dense, problem.pair_loss, masks, drop=problem.drop)


def _hardest(problem: Problem, arguments: Arguments, *, normalize: bool) -> Outcome | None:
    if not is_small(arguments):
        return None
    dense = read_dense(arguments, normalize=normalize)
    if dense is None:
        return None
    masks = [(dense.pairs(signs), k) for signs, k in problem.hardest(len(dense.rows))]
    return hardest(dense, problem.pair_loss, masks, drop=problem.drop)


def _one_by_one(problem: Problem, arguments: Arguments, *, normalize: bool) -> Outcome | None:
    """Sets that look at every pair once, in float64."""
    if not is_small(arguments):
        return None
    dense = read_dense(arguments, normalize=normalize)
    if dense is None or (problem.drop and doubtful(dense, problem.pair_loss)):
        return None
    found, drop = problem.uncertainty, problem.drop
    if type(found) is ChiSquare:
        return spread(dense, problem.pair_loss, found.rho, drop=drop)
    if found.gamma < SHARPEST:
        return None
    return sampled(dense, problem.pair_loss, found.gamma, found.sample, found.generator, drop=drop)


def _soft_maxima(
    problem: Problem, uncertainty: PerAnchorKL, arguments: Arguments, *, normalize: bool
) -> Outcome | None:
    gammas = scalar_gammas(uncertainty)
    if gammas is None or not all(SHARPEST < gamma < GENTLEST for gamma in gammas.values()):
        return None
    dense = read_dense(arguments, normalize=normalize)
    if dense is None or (problem.drop and doubtful(dense, problem.pair_loss)):
        return None
    anchors = DenseAnchors(dense, problem.pair_loss, gammas, drop=problem.drop)
    mean = uncertainty.reduction == "mean"
    return soft_maxima(anchors, slack=uncertainty.slack, mean=mean)
