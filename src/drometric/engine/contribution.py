"""What a group of pairs gives to a robust loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.engine.gradient import Gradient
from drometric.engine.judged import Judged
from drometric.engine.layout import Layout
from drometric.engine.outcome import Outcome


@dataclass(frozen=True, eq=False)
class Contribution:
    """The value of the worst case over a group of pairs, and the slopes of the pairs."""

    value: float
    listed: Judged | None
    """The pairs that stand in a list,"""
    slope: Tensor | None
    """and their weights times the slopes of their losses."""
    gradient: Gradient | None = None
    """What all others give, to be multiplied with"""
    factor: float = 1.0


def evenly(chosen: Judged, count: int) -> Contribution:
    """The sum of some losses, divided by `count`."""
    return Contribution(float(chosen.loss.sum()) / count, chosen, chosen.slope / count)


def weighted(chosen: Judged, often: Tensor, count: int) -> Contribution:
    """The sum of some losses, some of them several times, divided by `count`."""
    weight = often / count
    return Contribution(float((weight * chosen.loss).sum()), chosen, weight * chosen.slope)


def average(layout: Layout, parts: list[Contribution | None]) -> Outcome:
    """The mean of contributions; one without pairs leaves its weight to the others."""
    present = [part for part in parts if part is not None]
    gradient = next((part.gradient for part in present if part.gradient is not None), None)
    value = 0.0
    if gradient is None:
        gradient = Gradient(layout)
    for place, part in enumerate(p for p in present if p.gradient is not None):
        assert part.gradient is not None
        if place:
            gradient.add(part.gradient, part.factor / len(present))
        else:
            gradient.scale(part.factor / len(present))
    for part in present:
        value += part.value / len(present)
        if part.listed is not None and part.slope is not None:
            gradient.add_list(part.listed.pairs, part.slope / len(present))
    device = layout.rows.vector.device
    return gradient.outcome(torch.full((), value, dtype=torch.float64, device=device))
