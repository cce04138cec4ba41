"""ChiSquare by its optimality conditions: p* is c [l - η]+ and the ball's constraint is tight.

The maximum of a linear function over a ball cut by the simplex is unique unless the ball holds
the uniform weighting of the maximisers, so these conditions identify p* on any losses at all.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import drometric as dm
from drometric.uncertainty import Pairs


def solve(loss, rho):
    loss = torch.as_tensor(np.asarray(loss), dtype=torch.float64)
    n = len(loss)
    similar, row = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.long)
    pairs = Pairs(loss, similar, row, torch.arange(n), row_count=1, column_count=n, within=False)
    value, weight = dm.ChiSquare(rho).worst_case(pairs)
    return value.item(), weight.numpy()


def check_conditions(loss, rho):
    """All that makes p* and the value right, with no reference to how they are found."""
    loss = np.asarray(loss, float)
    n, k = len(loss), (loss == loss.max()).sum()
    value, p = solve(loss, rho)
    top = loss.max()
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1, abs=1e-12)
    # Exactly summed, so that losses of very different size do not hide each other.
    exact = sum(Fraction(a) * Fraction(b) for a, b in zip(p, loss, strict=True))
    assert value == pytest.approx(float(exact), rel=1e-12)
    if rho >= n * (n / k - 1) / 2 * (1 + 1e-12):
        np.testing.assert_allclose(p, (loss == top) / k, atol=1e-15)
        return
    assert ((n * p - 1) ** 2).sum() == pytest.approx(2 * rho, rel=1e-9, abs=1e-12)
    # p = c [l - η]+: all gaps of weights are c times the gaps of losses, and where the line
    # would lie below 0 the weight is 0.
    gap = (loss - top) / max(top - loss[p > 0].min(), 5e-324)
    steepness = p.max() - p[p > 0].min()
    np.testing.assert_allclose(p, np.maximum(p.max() + steepness * gap, 0), atol=1e-11)


@pytest.mark.parametrize("size", [2, 3, 5, 30, 400])
@pytest.mark.parametrize("kind", ["spread", "tied", "zeros", "exponential"])
def test_conditions_hold_on_random_losses(size, kind):
    rng = np.random.default_rng(size)
    for _ in range(25):
        loss = {
            "spread": rng.random(size),
            "tied": rng.integers(0, 4, size) / 4,  # a few levels, each many times
            "zeros": np.maximum(rng.normal(size=size), 0),
            "exponential": rng.exponential(size=size) ** 4,
        }[kind]
        if loss.min() < loss.max():
            check_conditions(loss, 10 ** rng.uniform(-4, 0.2 + 2 * np.log10(size)))


@pytest.mark.parametrize("rho", [1e-6, 0.01, 1.0, 30.0, 700.0])
def test_conditions_hold_on_losses_of_wildly_different_size(rho):
    rng = np.random.default_rng(1)
    for _ in range(25):
        check_conditions(10 ** rng.uniform(-12, 6, size=40), rho)
        check_conditions(10 ** rng.uniform(-12, -11, size=40), rho)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e6])
def test_scaling_and_shifting_the_losses_leaves_the_weights_alone(scale):
    loss = np.random.default_rng(2).random(30)
    for rho in (0.5, 10.0, 80.0):
        value, p = solve(loss, rho)
        moved_value, moved_p = solve(scale * (loss + 3), rho)
        np.testing.assert_allclose(moved_p, p, atol=1e-11)
        assert moved_value == pytest.approx(scale * (value + 3), rel=1e-12)


@pytest.mark.parametrize("base", [0.3, 0.7, 1.0, 1e6])
@pytest.mark.parametrize("rho", [0.1, 0.5, 1.0])
def test_losses_apart_by_rounding_only_still_give_a_distribution(base, rho):
    # What a collapsed batch gives: their mean, once rounded, is one of the losses again.
    step = np.spacing(base)
    for loss in ([base, base, base + step], [base] * 5 + [base + step, base + 2 * step]):
        check_conditions(loss, rho)


def test_losses_of_a_collapsed_batch_give_a_distribution():
    loss, labels = dm.RobustPairLoss(dm.Margin(), dm.ChiSquare(0.5)), torch.arange(6)
    noise = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for size in (1e-7, 1e-8, 1e-9):
        _, _, weight = loss.weights(1 / 3 + size * noise, labels)
        assert weight.sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_losses_whose_squares_vanish(rho):
    check_conditions([1e-170, 2e-170, 3e-170], rho)


def test_the_closed_form_holds_exactly_as_far_as_no_weight_is_below_zero():
    rng = np.random.default_rng(3)
    for _ in range(50):
        loss = rng.random(20)
        variance = loss.var()  # biased, over the n pairs
        limit = 20 * variance / (2 * (loss.mean() - loss.min()) ** 2)
        for part in (0.001, 0.5, 1 - 1e-9):
            value, p = solve(loss, part * limit)
            closed = loss.mean() + np.sqrt(2 * part * limit * variance / 20)
            assert value == pytest.approx(closed, abs=1e-13)
            assert (p > 0).all()
        value, p = solve(loss, 1.5 * limit)
        assert p.min() == 0
        assert value < loss.mean() + np.sqrt(3 * limit * variance / 20) - 1e-5


@pytest.mark.parametrize("k", [1, 3, 7])
def test_from_the_saturation_radius_on_the_maximisers_have_it_all(k):
    loss = np.append(np.random.default_rng(k).random(20 - k), np.full(k, 1.5))
    radius = 20 * (20 / k - 1) / 2
    for rho in (radius, radius * 1.01, 1e9, np.inf):
        value, p = solve(loss, rho)
        assert value == pytest.approx(1.5, abs=1e-7 if rho == radius else 1e-14)
        np.testing.assert_allclose(p, (loss == 1.5) / k, atol=1e-7 if rho == radius else 1e-15)
    value, p = solve(loss, radius * 0.99)
    assert value < 1.5 - 1e-5
    assert (p > 0).sum() > k


@pytest.mark.parametrize("rho", [0.0, 0.3, 1e5, np.inf])
def test_equal_losses_weigh_the_same(rho):
    for n in (1, 2, 9):
        value, p = solve(np.full(n, 0.7), rho)
        assert value == pytest.approx(0.7, abs=1e-15)
        np.testing.assert_allclose(p, 1 / n, atol=1e-15)


def test_radius_zero_is_the_mean():
    loss = np.array([0.0, 0.1, 0.4, 3.0])
    value, p = solve(loss, 0.0)
    assert value == pytest.approx(loss.mean(), abs=1e-15)
    np.testing.assert_allclose(p, 0.25, atol=1e-15)


def test_two_pairs_by_hand():
    # (2 p - 1)² + (1 - 2 p)² = 2ρ gives p = (1 + √ρ) / 2 on the larger, up to ρ = 1.
    for rho in (0.0, 0.04, 0.49, 1.0, 5.0):
        value, p = solve([0.2, 1.0], rho)
        hard = (1 + min(np.sqrt(rho), 1)) / 2
        np.testing.assert_allclose(p, [1 - hard, hard], atol=1e-15)
        assert value == pytest.approx(0.2 + 0.8 * hard, abs=1e-15)


def test_ties_weigh_the_same_wherever_they_stand():
    loss = np.tile([0.0, 0.5, 1.0, 0.5], 6)
    for rho in (0.1, 5.0, 20.0):
        _, p = solve(loss, rho)
        for level in (0.0, 0.5, 1.0):
            assert len(set(p[loss == level])) == 1
