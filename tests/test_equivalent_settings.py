"""Limits of the sets, and settings that say the same in two ways."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from eight_examples import LABELS, batch, value_and_gradient
from hypothesis import given, settings
from hypothesis import strategies as st

import drometric as dm
from drometric.mining import mined_pairs
from drometric.uncertainty import Pairs


def assert_equal_losses(one, other, seeds=range(3), **how):
    for seed in seeds:
        ours, by_ours = value_and_gradient(one, batch(seed), **how)
        theirs, by_theirs = value_and_gradient(other, batch(seed), **how)
        assert ours == pytest.approx(theirs, abs=1e-13)
        torch.testing.assert_close(by_ours, by_theirs, rtol=0, atol=1e-13)


def robust(uncertainty, pair_loss=None, **how):
    return dm.RobustPairLoss(pair_loss or dm.Margin(), uncertainty, **how)


def worst(uncertainty, loss):
    loss = torch.as_tensor(loss, dtype=torch.float64)
    n = len(loss)
    row, similar = torch.zeros(n, dtype=torch.long), torch.arange(n) % 3 == 0
    pairs = Pairs(loss, similar, row, torch.arange(n), row_count=1, column_count=n, within=False)
    return uncertainty.worst_case(pairs).value.item()


# ------------------------------------------------------------------ limits and equal settings


@pytest.mark.parametrize("k", [1, 2, 5])
def test_kl_goes_to_the_maximum_and_to_the_mean(k):
    loss = torch.rand(30, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
    loss[:k] = 1.25
    mean = loss.mean().item()
    for gamma in (1.0, 0.1, 1e-2, 1e-4, 1e-8):
        value = worst(dm.KL(gamma), loss)
        assert 1.25 - gamma * math.log(30 / k) - 1e-15 <= value < 1.25
    assert worst(dm.KL(1e-8), loss) == pytest.approx(1.25 - 1e-8 * math.log(30 / k), abs=1e-15)
    assert worst(dm.KL(0.0), loss) == 1.25 == worst(dm.Simplex(), loss)
    # mean + Var / (2γ) + …: the last digits of the mean must survive a large γ.
    spread = loss.var(unbiased=False).item()
    for gamma in (1e4, 1e8, 1e12):
        assert worst(dm.KL(gamma), loss) == pytest.approx(
            mean + spread / (2 * gamma), abs=1 / gamma**2 + 1e-15
        )
    assert worst(dm.KL(math.inf), loss) == pytest.approx(mean, abs=1e-15)


N_PAIRS, N_POSITIVE, N_NEGATIVE = 28, 7, 21
EVEN = torch.full((8,), math.inf, dtype=torch.float64)
SAME_SETS = [
    (dm.TopK(k=N_PAIRS), dm.Uniform()),
    (dm.TopK(k=10 * N_PAIRS), dm.Uniform()),
    (dm.TopK(k=1), dm.Simplex()),
    (dm.TopK(per_example=1.5), dm.TopK(k=12)),
    (dm.KL(math.inf), dm.Uniform()),
    (dm.KL(0.0), dm.Simplex()),
    (dm.ChiSquare(0.0), dm.Uniform()),
    (dm.ChiSquare(math.inf), dm.Simplex()),
    (dm.BalancedTopK(k=2 * N_NEGATIVE), dm.BalancedKL(math.inf, math.inf)),
    (dm.BalancedTopK(k=2), dm.BalancedKL(0.0, 0.0)),
    (dm.PerAnchorKL(EVEN, EVEN), dm.PerAnchorKL(math.inf, math.inf)),
]


@pytest.mark.parametrize(("one", "other"), SAME_SETS)
def test_settings_that_are_the_same_set(one, other):
    # Losses without ties, so that the maximiser is unique too.
    assert_equal_losses(robust(one, dm.Binomial()), robust(other, dm.Binomial()))


def test_settings_next_to_those_are_not_the_same_set():
    for one, other in (
        (dm.TopK(k=N_PAIRS - 1), dm.Uniform()),
        (dm.TopK(k=2), dm.Simplex()),
        (dm.BalancedTopK(k=2 * N_NEGATIVE - 2), dm.BalancedKL(math.inf, math.inf)),
        (dm.BalancedTopK(k=4), dm.BalancedKL(0.0, 0.0)),
    ):
        values = [robust(u, dm.Binomial())(batch(), LABELS).item() for u in (one, other)]
        assert abs(values[0] - values[1]) > 1e-4


def by_hand(x, pair_loss=None):
    """Losses as a dense matrix, and which ordered pairs are positive and negative."""
    unit = torch.nn.functional.normalize(x, dim=1)
    s, similar = unit @ unit.T, LABELS[:, None] == LABELS
    pair_loss = pair_loss or dm.Margin()
    losses = torch.where(similar, pair_loss.positive(s)[0], pair_loss.negative(s)[0])
    return losses, similar & ~torch.eye(8, dtype=torch.bool), ~similar


def test_plain_means_by_hand():
    x = batch()
    loss, positive, negative = by_hand(x)
    balanced = (loss[positive].mean() + loss[negative].mean()) / 2
    assert robust(dm.BalancedTopK(k=99))(x, LABELS).item() == pytest.approx(balanced.item())
    everyone = (loss * (positive | negative)).sum() / 56
    assert robust(dm.Uniform())(x, LABELS).item() == pytest.approx(everyone.item())
    per_anchor = sum((loss * side).sum(1) / side.sum(1) for side in (positive, negative))
    ours = robust(dm.PerAnchorKL(math.inf, math.inf))(x, LABELS).item()
    assert ours == pytest.approx(per_anchor.mean().item())
    assert abs(per_anchor.mean() / 2 - balanced) > 1e-3  # not the same as balancing the batch


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 100), min_size=2, max_size=20))
def test_each_parameter_goes_one_way(steps):
    losses = [step / 10 for step in steps]  # with many ties
    easier_to_harder = [
        [dm.TopK(k=k) for k in range(len(losses), 0, -1)],
        [dm.KL(gamma) for gamma in (math.inf, 1e3, 5.0, 1.0, 0.1, 1e-3, 0.0)],
        [dm.ChiSquare(rho) for rho in (0.0, 1e-6, 0.1, 1.0, 10.0, 300.0, math.inf)],
    ]
    for sets in easier_to_harder:
        values = [worst(uncertainty, losses) for uncertainty in sets]
        assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values))
        assert values[0] == pytest.approx(sum(losses) / len(losses), abs=1e-12)
        assert values[-1] == max(losses)


def test_zero_losses_matter_only_where_there_are_some():
    wide, narrow = dm.Margin(3.0), dm.Margin(0.1)
    for chosen in (dm.Uniform(), dm.TopK(k=20), dm.KL(0.3), dm.PerAnchorKL(slack=True)):
        drop, keep = (
            [robust(chosen, margin, zero_loss=how) for margin in (wide, narrow)]
            for how in ("drop", "keep")
        )
        assert_equal_losses(drop[0], keep[0])
        assert abs(drop[1](batch(), LABELS) - keep[1](batch(), LABELS)) > 1e-3


class AllPairs:
    """A miner that gives every ordered pair once."""

    def mine(self, batch):
        return mined_pairs(None, batch)


def test_mining_by_threshold_is_dropping_zero_losses():
    margin = dm.Margin(0.3, 0.2)
    mined = dm.MinedPairLoss(margin, dm.ThresholdMiner(0.3, 0.2))
    assert_equal_losses(mined, robust(dm.Uniform(), margin, zero_loss="drop"))
    assert_equal_losses(dm.MinedPairLoss(margin, AllPairs()), robust(dm.Uniform(), margin))
    with_all = robust(dm.Uniform(), margin)(batch(), LABELS)
    assert abs(mined(batch(), LABELS) - with_all) > 1e-2


@pytest.mark.parametrize("make", [dm.MultiSimilarity, dm.LiftedStructure])
def test_a_miner_is_the_loss_on_the_pairs_that_it_keeps(make):
    miner = dm.ThresholdMiner(0.3, 0.2)
    for seed in range(3):
        x = batch(seed)
        loss, positive, negative = by_hand(x, dm.Margin(0.3, 0.2))
        dropped = loss == 0
        assert (dropped & positive).any() or (dropped & negative).any()
        ours, by_ours = value_and_gradient(make(miner=miner), x)
        theirs, by_theirs = value_and_gradient(make(), x, ignore=dropped)
        assert ours == pytest.approx(theirs, abs=1e-14)
        torch.testing.assert_close(by_ours, by_theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("chosen", [dm.Uniform(), dm.KL(0.2), dm.PerAnchorKL(slack=True)])
def test_a_batch_against_itself_is_the_batch_if_its_self_pairs_are_ignored(chosen):
    x = batch().requires_grad_()
    loss, diagonal = robust(chosen), torch.eye(8, dtype=torch.bool)
    within = loss(x, LABELS)
    across = {"reference": x, "reference_labels": LABELS}
    value = loss(x, LABELS, ignore=diagonal, **across)
    assert value.item() == pytest.approx(within.item(), abs=1e-14)
    got, expected = (torch.autograd.grad(v, x)[0] for v in (value, within))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)
    assert abs(loss(x, LABELS, **across) - within) > 1e-3
