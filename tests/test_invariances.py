"""What a loss must not depend on, and Lemma 1: its gradient is Σ p* ∇l."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import drometric as dm

LOSSES = {
    "uniform": dm.RobustPairLoss(dm.Margin(), dm.Uniform()),
    "simplex": dm.RobustPairLoss(dm.Binomial(), dm.Simplex()),
    "top-k": dm.RobustPairLoss(dm.Binomial(), dm.TopK(k=5)),
    "balanced top-k": dm.RobustPairLoss(dm.Binomial(), dm.BalancedTopK(k=5)),
    "kl": dm.RobustPairLoss(dm.Margin(0.3), dm.KL(0.2), zero_loss="drop"),
    "balanced kl": dm.RobustPairLoss(dm.Contrastive(0.1), dm.BalancedKL(0.2, 0.3)),
    "per anchor": dm.RobustPairLoss(dm.Margin(), dm.PerAnchorKL(0.2, 0.5)),
    "chi-square": dm.RobustPairLoss(dm.Margin(), dm.ChiSquare(6.0)),
    "ms": dm.MultiSimilarity(),
    "ms, mined": dm.MultiSimilarity(miner=dm.MultiSimilarityMiner()),
    "ls": dm.LiftedStructure(),
    "hap2s": dm.HAP2S(weighting="polynomial"),
    "triplet": dm.Triplet(0.3),
    "batch-hard": dm.Triplet(0.3, "hardest"),
    "n-pair": dm.NPair(),
    "semi-hard": dm.MinedPairLoss(dm.Margin(), dm.SemiHard()),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
checked = settings(deadline=None, derandomize=True, max_examples=12)
seeds = st.integers(0, 10_000)


def batch(seed, size=8):
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.normal(size=(size, 4)))
    return x, torch.tensor(rng.integers(0, 3, size)), rng


def value_and_gradient(loss, x, labels=None, **how):
    x = x.clone().requires_grad_()
    value = loss(x, labels, **how)
    value.backward()
    return value.item(), x.grad


def assert_same(got, expected, how=lambda gradient: gradient):
    assert got[0] == pytest.approx(expected[0], abs=1e-11)
    torch.testing.assert_close(got[1], how(expected[1]), rtol=1e-8, atol=1e-10)


@every_loss
@checked
@given(seeds)
def test_only_which_labels_are_equal_matters(loss, seed):
    x, labels, rng = batch(seed)
    expected = value_and_gradient(loss, x, labels)
    names = torch.tensor(rng.permutation([-5, 10**12, 7]))
    assert_same(value_and_gradient(loss, x, names[labels]), expected)
    one_hot = torch.nn.functional.one_hot(labels, 3).bool()
    assert_same(value_and_gradient(loss, x, one_hot), expected)
    similar = labels[:, None] == labels
    assert_same(value_and_gradient(loss, x, similar=similar), expected)
    assert_same(value_and_gradient(loss, x, similar=similar.fill_diagonal_(False)), expected)


@every_loss
@checked
@given(seeds)
def test_only_directions_matter_and_the_gradient_is_across_them(loss, seed):
    x, labels, rng = batch(seed)
    expected = value_and_gradient(loss, x, labels)
    assert (expected[1] * x).sum(1).abs().max() < 1e-10
    factor = torch.tensor(10 ** rng.uniform(-3, 3, (8, 1)))
    value, gradient = value_and_gradient(loss, factor * x, labels)
    assert_same((value, gradient * factor), expected)
    rotation = torch.tensor(np.linalg.qr(rng.normal(size=(4, 4)))[0])
    assert_same(value_and_gradient(loss, x @ rotation, labels), expected, lambda g: g @ rotation)


@every_loss
@checked
@given(seeds)
def test_the_order_of_the_examples_does_not_matter(loss, seed):
    x, labels, rng = batch(seed)
    order = torch.tensor(rng.permutation(8))
    moved = value_and_gradient(loss, x[order], labels[order])
    assert_same(moved, value_and_gradient(loss, x, labels), lambda gradient: gradient[order])


@every_loss
def test_the_losses_under_test_do_depend_on_labels_directions_and_lengths(loss):
    # Else the tests above would show nothing; lengths count with normalize=False.
    x, labels, rng = batch(3)
    value = loss(x, labels).item()
    assert value > 0.01
    assert abs(loss(x, labels.flip(0)).item() - value) > 1e-4
    assert abs(loss(torch.tensor(rng.normal(size=(8, 4))), labels).item() - value) > 1e-4
    loss.normalize = False
    try:
        assert abs(loss(x, labels).item() - value) > 1e-4
    finally:
        loss.normalize = True


# ------------------------------------------------------------------ Lemma 1


SMOOTH = [
    dm.Uniform(),
    dm.Simplex(),
    dm.TopK(k=5),
    dm.BalancedTopK(k=6),
    dm.KL(0.3),
    dm.BalancedKL(0.1, 0.5),
    dm.PerAnchorKL(0.3, 0.0, slack=True),
    dm.ChiSquare(1.0),
    dm.ChiSquare(60.0),
]


@pytest.mark.parametrize("chosen", SMOOTH, ids=repr)
@pytest.mark.parametrize("pair_loss", [dm.Margin(), dm.Binomial(), dm.Contrastive()], ids=repr)
def test_away_from_ties_and_kinks_it_is_the_gradient_of_the_value(chosen, pair_loss):
    loss = dm.RobustPairLoss(pair_loss, chosen)
    x, labels, rng = batch(1)
    _, gradient = value_and_gradient(loss, x, labels)
    for _ in range(5):
        step = 1e-6 * torch.tensor(rng.normal(size=(8, 4)))
        slope = (loss(x + step, labels) - loss(x - step, labels)) / 2
        assert slope.item() == pytest.approx((gradient * step).sum().item(), abs=1e-13)


def pair_losses_and_slopes(x, direction, margin, threshold):
    """By hand, of each unordered pair: its loss, and its derivative along the direction."""
    labels = torch.arange(len(x)) // 2

    def losses(y):
        unit = torch.nn.functional.normalize(y, dim=1)
        row, column = torch.triu_indices(len(x), len(x), 1)
        sign = torch.where(labels[row] == labels[column], 1.0, -1.0)
        return (margin + sign * (threshold - (unit[row] * unit[column]).sum(1))).clamp(min=0)

    return torch.autograd.functional.jvp(losses, x, direction)


# Orthogonal rows, two of them twice: the three positive pairs (s = 0) and the two negative pairs
# of equal rows (s = 1) tie at the top, the other ten negative pairs tie below.
def tied(k):
    rows = torch.eye(4, dtype=torch.float64)[[0, 1, 2, 3, 0, 1]]
    return rows, dm.RobustPairLoss(dm.Margin(2.0, 0.5), dm.TopK(k=k) if k else dm.Simplex())


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 6, 9, 13, 15])
def test_at_ties_the_gradient_is_one_of_those_of_the_optimal_weightings(k):
    x, loss = tied(k)
    labels = torch.arange(6) // 2
    _, gradient = value_and_gradient(loss, x, labels)
    rng = np.random.default_rng(k)
    width, gaps = max(k, 1), []
    for _ in range(60):
        direction = torch.nn.functional.normalize(torch.tensor(rng.normal(size=24)), dim=0)
        direction = direction.reshape(x.shape)
        losses, slopes = pair_losses_and_slopes(x, direction, 2.0, 0.5)
        cut = losses.sort(descending=True).values[width - 1]
        certain, equal = losses > cut + 1e-12, (losses - cut).abs() <= 1e-12
        free = width - int(certain.sum())
        # <∇g(p*), d> is greatest for the p* that takes the steepest of the tied pairs.
        best = (slopes[certain].sum() + slopes[equal].topk(free).values.sum()) / width
        ours = (gradient * direction).sum()
        # Below the support function in every direction: inside the convex hull of the union.
        assert ours <= best + 1e-12
        # And that support function is the slope of F itself, as the lemma has it.
        step = 1e-6
        forward = (loss(x + step * direction, labels) - loss(x, labels)) / step
        assert forward.item() == pytest.approx(best.item(), abs=5e-6)
        gaps.append((best - ours).item())
    # There are ties to speak of: the gradient does not exist, unless all tied pairs are taken.
    assert (max(gaps) > 0.01) == (free < int(equal.sum()))


@pytest.mark.parametrize("chosen", [dm.KL(0.0), dm.ChiSquare(math.inf), dm.BalancedKL(0.0, 0.0)])
def test_soft_sets_in_the_limit_share_the_weight_among_ties(chosen):
    x, _ = tied(0)
    labels = torch.arange(6) // 2
    i, j, weight = dm.RobustPairLoss(dm.Margin(2.0, 0.5), chosen).weights(x, labels)
    assert list(zip(i.tolist(), j.tolist(), strict=True)) == [
        (0, 1),
        (0, 4),
        (1, 5),
        (2, 3),
        (4, 5),
    ]
    expected = [1 / 6, 1 / 4, 1 / 4, 1 / 6, 1 / 6] if "Balanced" in repr(chosen) else [0.2] * 5
    assert weight.tolist() == pytest.approx(expected, abs=1e-15)


def test_at_a_kink_the_slope_is_zero_so_the_pair_adds_no_gradient():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    for labels, threshold in (([0, 0], -0.25), ([0, 1], 0.25)):  # s = 0 is just on the edge
        loss = dm.RobustPairLoss(dm.Margin(0.25, threshold), dm.Uniform())
        value, gradient = value_and_gradient(loss, x, torch.tensor(labels))
        assert value == 0
        assert not gradient.any()
