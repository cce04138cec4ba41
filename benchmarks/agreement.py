"""Do the implementations of a loss compute the same?

drometric is given the embeddings as they are timed, the others the same ones in float64: where
the logarithms of large sums cancel, float32 would leave them too few digits to tell.
"""

import torch
from cases import Case
from inputs import Setting
from torch import Tensor

VALUE, GRADIENT = 1e-5, 1e-4
"""Relative differences that drometric's rounding to float32 may make."""
DRAWS, DRAWN_VALUE = 64, 2e-2
"""Where pairs are drawn: how many calls are averaged, and how far these averages may differ."""


def disagreements(
    case: Case, implementations: list[str], batch: int, setting: Setting
) -> tuple[str, list[str]]:
    """A line to show, and the implementations that compute something else than drometric."""
    shown, wrong = [], []
    value, gradient = _average(case, "drometric", batch, setting)
    for name in implementations:
        if name == "drometric" or not case.has(name):
            continue
        other_value, other_gradient = _average(case, name, batch, setting)
        of_value = float((other_value - value).abs() / value.abs())
        of_gradient = float((other_gradient - gradient).norm() / gradient.norm())
        shown.append(f"{name} {of_value:.0e} {of_gradient:.0e}")
        if case.drawn:
            same = of_value <= DRAWN_VALUE
        else:
            same = of_value <= VALUE and of_gradient <= GRADIENT
        if not same:
            wrong.append(name)
    return f"{case.name:<24} B={batch:<6} " + "   ".join(shown), wrong


def _average(
    case: Case, implementation: str, batch: int, setting: Setting
) -> tuple[Tensor, Tensor]:
    """Value and gradient, in float64."""
    x, labels = setting.inputs(case.data, batch)
    if implementation != "drometric":
        x = x.detach().double().requires_grad_()
    step = case.step(implementation, x, labels)
    calls = DRAWS if case.drawn else 1
    # Gradients of several calls add up.
    value = torch.stack([step.run().double() for _ in range(calls)]).mean()
    assert x.grad is not None
    return value, x.grad.double() / calls
