"""What a loss finds in a batch, and the gradient that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from drometric.engine.batch import Batch
from drometric.engine.outcome import Outcome
from drometric.engine.rows import Rows

REVERSE_MODE_ONLY = (
    "drometric's losses have derivatives in reverse mode only, of one batch at a time: use "
    "backward, torch.autograd.grad or torch.func.grad, not jvp, vmap, jacfwd or hessian"
)


@dataclass(frozen=True, eq=False)
class Solution:
    """A loss's value and how it depends on every similarity. All matrices are (B, R)."""

    value: Tensor
    """The loss, a float64 scalar."""
    slope: Tensor
    """Its derivative in each similarity, taken as if (i, j) and (j, i) were two variables."""
    weight: Tensor
    """The weight of each unordered pair: p*, or what the loss has in its place."""
    active: Tensor
    """True for the unordered pairs that are reported as active."""


def from_slope(batch: Batch, value: Tensor, slope: Tensor) -> Solution:
    """A solution whose weights are the absolute slopes of the unordered pairs."""
    of_pair = slope + slope.T if batch.within else slope
    weight = torch.where(batch.unordered, of_pair.abs(), 0.0)
    return Solution(value, slope, weight, weight > 0)


def outcome_of(
    solution: Solution, batch: Batch, dtype: torch.dtype, wanted: tuple[bool, bool]
) -> Outcome:
    """The gradients that follow from a solution: `wanted` says of embeddings and of reference."""
    slope, rows, columns = solution.slope, batch.rows, batch.columns
    both = slope + slope.T if batch.within else slope
    of_rows = _gradient(rows, both, columns, dtype) if wanted[0] else None
    of_columns = None
    if not batch.within and wanted[1]:
        of_columns = _gradient(columns, slope.T, rows, dtype)
    return Outcome(solution.value, of_rows, of_columns)


def _gradient(rows: Rows, slope: Tensor, others: Rows, dtype: torch.dtype) -> Tensor:
    """The gradient of the loss in one set, given the slopes in its similarities to the other."""
    gradient = rows.pull_back(slope @ others.vector)
    largest = torch.finfo(dtype).max
    return gradient.clamp(-largest, largest).to(dtype)


def is_differentiated(source: object) -> bool:
    """Whether anyone wants the derivative of something in `source`."""
    if not isinstance(source, Tensor):
        return False
    forward = _unpack_dual(source).tangent is not None
    return forward or (source.requires_grad and torch.is_grad_enabled())


def checked_value(outcome: Outcome, dtype: torch.dtype) -> Tensor:
    """The value in the dtype of values, or a `ValueError` if it can't hold it."""
    value = outcome.value.to(dtype)
    if not math.isfinite(value.item()):
        raise ValueError(
            f"the loss is {float(outcome.value):.3g}, which is no finite {value.dtype}: make the "
            "embeddings or the parameters of the loss smaller, or use normalize=True"
        )
    return value


class _PairGradient(torch.autograd.Function):
    """A value that is computed together with its gradients in some sources."""

    @staticmethod
    def forward(compute: Callable[..., tuple[Tensor, ...]], *sources: Tensor) -> tuple[Tensor, ...]:
        return compute(*sources)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        gradients, sources = output[1:], inputs[1:]
        ctx.mark_non_differentiable(*gradients)
        ctx.save_for_backward(*gradients, *sources)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        gradients, sources = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        scaled = [
            _scale(gradient, upstream[0], source.dtype)
            for gradient, source in zip(gradients, sources, strict=True)
        ]
        if torch.is_grad_enabled():
            scaled = [_first_order_only(gradient, *sources) for gradient in scaled]
        return None, *scaled

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        raise RuntimeError(REVERSE_MODE_ONLY)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        raise RuntimeError(REVERSE_MODE_ONLY)


def _scale(gradient: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient times a factor in a dtype that may hold less than its own.

    What does not fit becomes the largest number that does, except where it is the factor that
    makes it too large: a gradient scaler looks for those infinities.
    """
    if dtype == gradient.dtype:
        return factor * gradient
    largest = torch.finfo(dtype).max * factor.abs().clamp(min=1)
    return (factor * gradient).clamp(-largest, largest).to(dtype)


class _FirstOrderOnly(torch.autograd.Function):
    """A gradient that depends on its sources in a way that is not known here."""

    @staticmethod
    def forward(gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(
            "drometric's losses have first derivatives only: the weights of the pairs are held "
            "constant in the gradient, so its derivative would be wrong. Take no second "
            "derivative through a loss (no create_graph=True followed by backward)"
        )


_unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual
with_gradient: Callable[..., tuple[Tensor, ...]] = _PairGradient.apply
_first_order_only: Callable[..., Tensor] = _FirstOrderOnly.apply
