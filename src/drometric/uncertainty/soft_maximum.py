"""`γ log mean e^{l/γ}`, the maximum softened by a KL penalty, accurate from γ = 0 to ∞."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_maximum(
    loss: Tensor, gamma: Tensor, counted: Tensor, *, slack: bool = False
) -> tuple[Tensor, Tensor]:
    """Each row's max over p of `Σ p l - γ KL(p | uniform)`, and the p that reaches it.

    Args:
        loss: (rows, n) losses.
        gamma: (rows,) or (1,) strengths; 0 is the maximum, ∞ the mean.
        counted: (rows, n), True where the entry is one of the row's group.
        slack: add one more entry of loss 0 to every group.

    Returns:
        The values, (rows,), 0 for an empty group, and p, (rows, n), 0 where not counted.
        Of γ = 0, p is the limit: the uniform weight over the maximisers.
    """
    if slack:
        loss = torch.nn.functional.pad(loss, (0, 1), value=0.0)
        counted = torch.nn.functional.pad(counted, (0, 1), value=True)
    if not loss.shape[1]:
        return loss.sum(1), loss
    gamma = gamma[:, None]
    size = counted.sum(1, keepdim=True).clamp(min=1)
    top = loss.masked_fill(~counted, -torch.inf).amax(1, keepdim=True)
    top = torch.where(top.isfinite(), top, 0.0)
    excess = loss - top
    # Where the excess is 0 so is the exponent, also for γ = 0, which sends all others to -∞.
    exponent = torch.where(excess == 0, 0.0, excess / gamma)
    exponent = exponent.masked_fill(~counted, -torch.inf)
    mass = exponent.exp().sum(1, keepdim=True)
    # Two roads to log mean e^x: near 0 (large γ) only expm1 and log1p keep the digits.
    shortfall = exponent.expm1().masked_fill(~counted, 0.0).sum(1, keepdim=True) / size
    log_mean = torch.where(shortfall > -0.5, shortfall.log1p(), (mass / size).log())
    mean = loss.masked_fill(~counted, 0.0).sum(1, keepdim=True) / size
    # Beyond some γ it is the mean to the last digit, also where (l - max) / γ vanishes.
    spread = -excess.masked_fill(~counted, 0.0).amin(1, keepdim=True)
    value = torch.where(spread < 2.0**-60 * gamma, mean, top + gamma * log_mean)
    filled = counted.any(1, keepdim=True)
    value = torch.where(filled, value, 0.0)
    weight = torch.where(filled, exponent.exp() / mass, 0.0)
    return value[:, 0], weight[:, :-1] if slack else weight
