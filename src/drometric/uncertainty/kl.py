"""A KL penalty instead of a hard set: every pair weighs, the hard ones exponentially more."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drometric.checks import number, whole
from drometric.uncertainty.draw import check_generator, draw
from drometric.uncertainty.pairs import Pairs, WorstCase
from drometric.uncertainty.soft_maximum import soft_maximum


@dataclass(frozen=True)
class KL:
    """The maximum softened by a KL penalty: the paper's DRO-KL (section 3.2).

    `max over p of Σ p l - γ KL(p | 1/n) = γ log((1/n) Σ e^{l/γ})`, with p* ∝ e^{l/γ}. γ = 0 is
    the maximum (of ties each weighs the same), γ = ∞ the mean. Of k equal maximisers, as γ → 0,
    the value lies between `max - γ log(n/k)` and `max`.

    With `sample=K`, value and gradient are those of the mean of K losses drawn from p* with
    replacement: unbiased for Σ p* ∇l, but not the optimum, and without the penalty.

    Args:
        gamma: γ, the strength of the penalty, from 0 to ∞.
        sample: K, the number of pairs to draw; None uses all pairs exactly.
        generator: what the draws come from; None is torch's default one, of the CPU. The
            same input and generator state give the same result on the same kind of device.
    """

    gamma: float = 0.1
    sample: int | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        number("gamma", self.gamma, at_least=0.0, infinite=True)
        if self.sample is not None:
            whole("sample", self.sample)
        check_generator(self.generator)

    def worst_case(self, pairs: Pairs) -> WorstCase:
        exact = kl_worst_case(pairs.loss, self.gamma)
        if self.sample is None:
            return exact
        count = torch.tensor([self.sample], device=pairs.loss.device)
        _, drawn = draw(exact.weight[None], count, self.generator)
        weight = torch.bincount(drawn, minlength=len(pairs)).to(pairs.loss) / self.sample
        return WorstCase((weight * pairs.loss).sum(), weight)


def kl_worst_case(loss: Tensor, gamma: float) -> WorstCase:
    """The soft maximum of one group of losses."""
    everything = torch.ones_like(loss, dtype=torch.bool)[None]
    value, weight = soft_maximum(loss[None], torch.full_like(loss[:1], gamma), everything)
    return WorstCase(value[0], weight[0])
