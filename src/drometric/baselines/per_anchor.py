"""Losses that are a sum over anchors: their reduction, and sums over an anchor's pairs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from drometric.checks import one_of

Reduction = Literal["mean", "sum"]


def check_reduction(reduction: Reduction) -> Reduction:
    """`reduction`, if it is "mean" or "sum"."""
    return one_of("reduction", reduction, ("mean", "sum"))


def reduce(per_anchor: Tensor, reduction: Reduction, anchors: int) -> Tensor:
    """The sum, or the mean over all anchors: those left out of `per_anchor` count as 0."""
    total = per_anchor.sum()
    return total / max(anchors, 1) if reduction == "mean" else total


def log_sum_exp(exponent: Tensor, count: Tensor, *, plus_one: bool = False) -> Tensor:
    """`log Σ count e^exponent` of each row, or `log(1 + Σ …)`.

    Without the one, every row must count something: -∞ has no gradient.
    """
    weighted = torch.where(count > 0, exponent + count.log(), -torch.inf)
    if plus_one:
        weighted = torch.nn.functional.pad(weighted, (0, 1), value=0.0)
    return weighted.logsumexp(1)
