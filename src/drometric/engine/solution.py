"""What a loss finds in a batch, and the gradient that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drometric.engine.arguments import Arguments
from drometric.engine.batch import Batch


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


def differentiate(batch: Batch, objective: Callable[[Tensor], Tensor]) -> Solution:
    """The solution of a loss that is a plain function of the similarities.

    It has no p*: the weight of a pair is `|∂L/∂s|`, and a pair with a weight is active.
    """
    slope, value = torch.func.grad_and_value(objective)(batch.similarity)
    return from_slope(batch, value, slope)


def from_slope(batch: Batch, value: Tensor, slope: Tensor) -> Solution:
    """A solution whose weights are the absolute slopes of the unordered pairs."""
    of_pair = slope + slope.T if batch.within else slope
    weight = torch.where(batch.unordered, of_pair.abs(), 0.0)
    return Solution(value, slope, weight, weight > 0)


def attach(solution: Solution, batch: Batch, arguments: Arguments) -> Tensor:
    """The value as a scalar whose backward pass gives `Σ p* ∇l` to embeddings and reference."""
    value = solution.value.to(arguments.dtype)
    if not bool(value.isfinite()):
        raise ValueError(
            f"the loss is {float(solution.value):.3g}, which is no finite {value.dtype}: make the "
            "embeddings or the parameters of the loss smaller, or use normalize=True"
        )
    sources = {"embeddings": arguments.embeddings, "reference": arguments.reference}
    wanted = {
        name: source
        for name, source in sources.items()
        if source is not None and source.requires_grad and torch.is_grad_enabled()
    }
    if not wanted:
        return value
    gradients = [
        _gradient(name, source, solution, batch).to(value.dtype) for name, source in wanted.items()
    ]
    return _with_gradient(value, *gradients, *wanted.values())


def _gradient(name: str, source: Tensor, solution: Solution, batch: Batch) -> Tensor:
    """The gradient of the loss in one of the two sets, float64."""
    if name == "embeddings":
        rows, slope = batch.rows, solution.slope @ batch.columns.vector
        if batch.within:
            slope += solution.slope.T @ batch.rows.vector
    else:
        rows, slope = batch.columns, solution.slope.T @ batch.rows.vector
    # What the set's dtype cannot hold becomes the largest number that it can: finite.
    largest = torch.finfo(source.dtype).max
    return rows.pull_back(slope).clamp(-largest, largest)


class _PairGradient(torch.autograd.Function):
    """A value, with the gradients of the inputs that it came from."""

    @staticmethod
    def forward(value: Tensor, *gradients_and_sources: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        gradients, sources = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        # First scaled, then rounded: what a gradient scaler is there for in float16.
        scaled = [
            (upstream[0] * gradient).to(source.dtype)
            for gradient, source in zip(gradients, sources, strict=True)
        ]
        if torch.is_grad_enabled():
            scaled = [_first_order_only(gradient, *sources) for gradient in scaled]
        return None, *(None for _ in gradients), *scaled


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


_with_gradient: Callable[..., Tensor] = _PairGradient.apply
_first_order_only: Callable[..., Tensor] = _FirstOrderOnly.apply
