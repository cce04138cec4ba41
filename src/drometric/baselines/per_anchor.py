"""Losses that are a sum over anchors: their reduction, and sums over an anchor's pairs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from drometric.checks import one_of
from drometric.engine.share import Share

Reduction = Literal["mean", "sum"]


def check_reduction(reduction: Reduction) -> Reduction:
    """`reduction`, if it is "mean" or "sum"."""
    return one_of("reduction", reduction, ("mean", "sum"))


def reduce(per_anchor: Tensor, slope: Tensor, reduction: Reduction) -> Share:
    """The share of a strip's anchors in the sum or the mean over all anchors."""
    return Share(per_anchor.sum(), len(per_anchor) if reduction == "mean" else 0, slope)


def hinges(per_anchor: Tensor, slope: Tensor, reduction: Reduction) -> Share:
    """The share of anchors of which each counts where it is above 0. One of -∞ is left out."""
    active = per_anchor > 0
    return reduce(per_anchor.clamp(min=0), torch.where(active[:, None], slope, 0.0), reduction)


def log_sum_exp(exponent: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """`log Σ count e^exponent` of each row, and its slope in each exponent.

    `count` may be a mask. A row that counts nothing gives -∞, with slopes of 0.
    """
    if count.dtype == torch.bool:
        weighted = exponent.masked_fill(~count, -torch.inf)
    else:
        weighted = exponent + count.log()
    total = weighted.logsumexp(1)
    return total, weighted.sub_(total.clamp(min=torch.finfo(total.dtype).min)[:, None]).exp_()


def softplus(exponent: Tensor) -> tuple[Tensor, Tensor]:
    """`log(1 + e^exponent)`, also of -∞, and its slope."""
    small = exponent.abs().neg_().exp_()
    slope = torch.where(exponent > 0, 1.0, small) / (1 + small)
    return exponent.clamp(min=0) + small.log1p_(), slope
