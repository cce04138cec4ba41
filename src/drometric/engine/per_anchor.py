"""PerAnchorKL, multi-similarity and lifted structure, from the soft maxima of every anchor."""

from __future__ import annotations

import torch
from torch import Tensor

from drometric.engine.anchors import Anchors
from drometric.engine.dense_anchors import DenseAnchors
from drometric.engine.outcome import Outcome

AnyAnchors = Anchors | DenseAnchors


def soft_maxima(anchors: AnyAnchors, *, slack: bool, mean: bool) -> Outcome:
    """`Σ_i Σ_sign γ log mean e^{l/γ}`, or its mean over the anchors i.

    With slack there is one more element of loss 0 in the mean of each group that is not empty.
    """
    scale = 1 / max(len(anchors), 1) if mean else 1.0
    value, pull, log_mass = 0.0, {}, {}
    for sign, group in anchors.groups.items():
        log_sum, count, there = group.log_sum, group.count, group.count > 0
        if slack:
            log_sum, count = _one_more(log_sum), count + 1
        log_mass[sign] = torch.where(there, log_sum, 0.0)
        log_mean = torch.where(there, log_sum - count.log(), 0.0)
        value += scale * group.gamma * float(log_mean.sum())
        pull[sign] = there.to(log_sum) * scale
    return anchors.outcome(value, pull, log_mass)


def multi_similarity(anchors: AnyAnchors, *, mean: bool) -> Outcome:
    """`Σ_i {(1/α) log[1 + Σ e^{-α(s-λ)}] + (1/β) log[1 + Σ e^{β(s-λ)}]}`, or its mean.

    The losses of the anchors are `λ - s` and `s - λ`, their γ 1/α and 1/β.
    """
    scale = 1 / max(len(anchors), 1) if mean else 1.0
    value, pull, log_mass = 0.0, {}, {}
    for sign, group in anchors.groups.items():
        log_mass[sign] = _one_more(group.log_sum)
        value += scale * group.gamma * float(log_mass[sign].sum())
        pull[sign] = torch.full_like(group.log_sum, scale)
    return anchors.outcome(value, pull, log_mass)


def lifted_structure(anchors: AnyAnchors, margin: float, *, mean: bool) -> Outcome:
    """`Σ_i [log Σ e^{margin - s} + log Σ e^{s}]+` over anchors with both signs, or its mean.

    The losses of the anchors are `-s` and `s`, their γ 1.
    """
    scale = 1 / max(len(anchors), 1) if mean else 1.0
    groups = anchors.groups
    both = (groups[True].count > 0) & (groups[False].count > 0)
    log_mass = {sign: torch.where(both, group.log_sum, 0.0) for sign, group in groups.items()}
    excess = margin + log_mass[True] + log_mass[False]
    active = both & (excess > 0)
    value = scale * float(torch.where(active, excess, 0.0).sum())
    return anchors.outcome(value, dict.fromkeys(groups, active.to(excess) * scale), log_mass)


def _one_more(log_sum: Tensor) -> Tensor:
    """`log(1 + e^log_sum)`."""
    return torch.logaddexp(log_sum, torch.zeros_like(log_sum))
