"""Losses that are a sum over anchors: their reduction, and sums over an anchor's pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from drometric.checks import one_of


def check_reduction(reduction: str) -> str:
    """`reduction`, if it is "mean" or "sum"."""
    return one_of("reduction", reduction, ("mean", "sum"))


def reduce(per_anchor: Tensor, reduction: str) -> Tensor:
    """The mean over all anchors, 0 where there is none, or the sum."""
    total = per_anchor.sum()
    return total / max(len(per_anchor), 1) if reduction == "mean" else total


def log_sum_exp(exponent: Tensor, count: Tensor, *, plus_one: bool = False) -> Tensor:
    """`log Σ count e^exponent` of each row, with a further e^0 in the sum if `plus_one`.

    Finite, with a gradient of zeros, also for a row that counts nothing: such rows of a sum
    without `plus_one` are for the caller to leave out.
    """
    weighted = exponent + count.log()
    filled = (count > 0).any(1)
    # A row of -∞ only has no gradient (NaN): it is replaced before, not after.
    weighted = torch.where(count > 0, weighted, -torch.inf)
    weighted = torch.where(filled[:, None], weighted, 0.0 * exponent)
    if plus_one:
        weighted = torch.cat([weighted, torch.zeros_like(weighted[:, :1])], dim=1)
        return torch.where(filled, weighted.logsumexp(1), 0.0)
    return weighted.logsumexp(1)
