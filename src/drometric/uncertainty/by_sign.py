"""Sets that treat positive and negative pairs apart and give each sign half the weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from drometric.uncertainty.pairs import Pairs, WorstCase


def balance(
    pairs: Pairs,
    positive: Callable[[Tensor], WorstCase],
    negative: Callable[[Tensor], WorstCase],
) -> WorstCase:
    """Half of each sign's worst case; a sign that chooses no pair leaves its half to the other."""
    value = torch.zeros_like(pairs.loss).sum()
    weight = torch.zeros_like(pairs.loss)
    solved = []
    for mask, solve in ((pairs.positive, positive), (~pairs.positive, negative)):
        worst = solve(pairs.loss[mask]) if bool(mask.any()) else None
        if worst is not None and bool(worst.weight.any()):
            solved.append((mask, worst))
    for mask, worst in solved:
        value = value + worst.value / len(solved)
        weight[mask] = worst.weight / len(solved)
    return WorstCase(value, weight)
