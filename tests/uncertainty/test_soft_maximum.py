"""γ log mean e^{l/γ} keeps its digits from γ = 0 to ∞: compared with very long decimals."""

import math
from decimal import Decimal, localcontext

import pytest
import torch

from drometric.uncertainty.soft_maximum import soft_maximum

LOSSES = {
    "plain": [0.0, 0.3, 0.7, 0.7, 1.9],
    "close together": [1.0, 1.0 + 1e-12, 1.0 + 3e-12],
    "far apart": [0.0, 1e-8, 1e8],
    "tiny": [1e-200, 3e-200],
    "huge": [1e200, 3e200, 0.0],
    "equal": [0.7, 0.7, 0.7],
    "negative": [-2.0, -0.5],
}
GAMMAS = [0.0, 1e-300, 1e-9, 1e-3, 0.1, 1.0, 1e3, 1e12, 1e100, 1e300, math.inf]


def exactly(losses: list[float], gamma: float, *, slack: bool) -> float:
    """The definition, with a maximum taken out so that e^x stays within reach."""
    with localcontext() as context:
        context.prec = 1100  # e^x - 1 for x = 1e-500 is to keep digits, too
        context.Emin, context.Emax = -(10**9), 10**9
        exact = [Decimal(loss) for loss in losses] + [Decimal(0)] * slack
        if gamma == 0:
            return float(max(exact))
        if math.isinf(gamma):
            return float(sum(exact) / len(exact))
        strength, top = Decimal(gamma), max(exact)
        # Below -10,000 an exponential adds nothing to 1100 digits, and costs a lot.
        exponents = [(loss - top) / strength for loss in exact]
        total = sum((x.exp() for x in exponents if x > -10_000), Decimal(0))
        return float(top + strength * (total / len(exact)).ln())


@pytest.mark.parametrize("slack", [False, True])
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("name", LOSSES)
def test_values_keep_their_digits(name: str, gamma: float, slack: bool) -> None:
    losses = torch.tensor([LOSSES[name]], dtype=torch.float64)
    counted = torch.ones_like(losses, dtype=torch.bool)
    strength = torch.tensor([gamma], dtype=torch.float64)
    value, weight = soft_maximum(losses, strength, counted, slack=slack)
    expected = exactly(LOSSES[name], gamma, slack=slack)
    largest = float(losses.abs().max())
    assert float(value) == pytest.approx(expected, rel=1e-12, abs=4e-16 * largest)
    assert (weight >= 0).all()
    assert float(weight.sum()) <= 1 + 1e-14


def test_groups_are_told_apart_and_an_empty_one_is_zero() -> None:
    losses = torch.tensor([[1.0, 5.0, 2.0], [7.0, 8.0, 9.0]], dtype=torch.float64)
    counted = torch.tensor([[True, False, True], [False, False, False]])
    value, weight = soft_maximum(losses, torch.tensor([0.0, 1.0]).double(), counted)
    assert value.tolist() == [2.0, 0.0]
    assert weight.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
