"""PerAnchorKL, multi-similarity and lifted structure, from the soft maxima of every anchor."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from drometric.engine.anchors import Anchors, suits
from drometric.engine.layout import Layout
from drometric.engine.outcome import Outcome
from drometric.engine.plan import Plan
from drometric.engine.tile_losses import Linear
from drometric.pair_losses import PairLoss


def soft_maxima(
    layout: Layout,
    pair_loss: PairLoss,
    gammas: dict[bool, float],
    plan: Plan,
    *,
    slack: bool,
    drop: bool,
    scale: float,
) -> Outcome | None:
    """`scale Σ_i Σ_sign γ log mean e^{l/γ}` over all anchors; None where float32 is too coarse.

    With slack there is one more element of loss 0 in each mean.
    """
    if not all(suits(layout, pair_loss, s, g, slack=slack) for s, g in gammas.items()):
        return None
    anchors = Anchors(layout, pair_loss, gammas, plan, slack=slack, drop=drop)
    value, pull, log_mass = 0.0, {}, {}
    for sign, group in anchors.groups.items():
        log_sum, count, there = group.log_sum, group.count, group.count > 0
        if slack:
            log_sum, count = torch.logaddexp(log_sum, torch.zeros_like(log_sum)), count + 1
        log_mass[sign] = torch.where(there, log_sum, 0.0)
        log_mean = log_mass[sign] - torch.where(there, count, 1.0).log()
        value += scale * group.gamma * float(torch.where(there, log_mean, 0.0).sum())
        pull[sign] = there * scale
    return _outcome(anchors, value, pull, log_mass)


def multi_similarity(
    layout: Layout, alpha: float, beta: float, threshold: float, plan: Plan, *, scale: float
) -> Outcome | None:
    """`scale Σ_i {(1/α) log[1 + Σ e^{-α(s-λ)}] + (1/β) log[1 + Σ e^{β(s-λ)}]}`."""
    linear, gammas = Linear(threshold), {True: 1 / alpha, False: 1 / beta}
    if not all(suits(layout, linear, s, g, slack=True) for s, g in gammas.items()):
        return None
    anchors = Anchors(layout, linear, gammas, plan, slack=True)
    value, pull, log_mass = 0.0, {}, {}
    for sign, group in anchors.groups.items():
        log_sum = group.log_sum
        log_mass[sign] = torch.logaddexp(log_sum, torch.zeros_like(log_sum))
        value += scale * group.gamma * float(log_mass[sign].sum())
        pull[sign] = torch.full_like(log_sum, scale)
    return _outcome(anchors, value, pull, log_mass)


def lifted_structure(layout: Layout, margin: float, plan: Plan, *, scale: float) -> Outcome | None:
    """`scale Σ_i [log Σ e^{margin - s} + log Σ e^{s}]+` over the anchors that have both signs."""
    linear, gammas = Linear(0.0), {True: 1.0, False: 1.0}
    if not all(suits(layout, linear, s, g, slack=False) for s, g in gammas.items()):
        return None
    anchors = Anchors(layout, linear, gammas, plan, slack=False)
    groups = anchors.groups
    both = (groups[True].count > 0) & (groups[False].count > 0)
    log_mass = {s: torch.where(both, group.log_sum, 0.0) for s, group in groups.items()}
    excess = margin + log_mass[True] + log_mass[False]
    active = both & (excess > 0)
    value = scale * float(torch.where(active, excess, 0.0).sum())
    return _outcome(anchors, value, dict.fromkeys(groups, active * scale), log_mass)


def _outcome(
    anchors: Anchors, value: float, pull: dict[bool, Tensor], log_mass: dict[bool, Tensor]
) -> Outcome:
    if not math.isfinite(value):
        raise ArithmeticError(f"sums of exponentials left the range of float32: {value}")
    gradient = anchors.gradient({s: p.double() for s, p in pull.items()}, log_mass)
    device = anchors.layout.rows.vector.device
    return gradient.outcome(torch.tensor(value, dtype=torch.float64, device=device))
