"""KL(sample=K): draws from p*, seeded, and right on average."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from batches import Case, case, find, spec

from drometric import KL, Contrastive, Margin, RobustPairLoss

DRAWS = 20_000


def sampled(gamma: float, sample: int, seed: int, zero_loss: str = "keep") -> RobustPairLoss:
    generator = torch.Generator().manual_seed(seed)
    return RobustPairLoss(Margin(), KL(gamma, sample, generator), zero_loss=zero_loss)


def optimal(of: Case, gamma: float, zero_loss: str = "keep") -> oracle.Outcome:
    return oracle.robust_pair_loss(
        **of.for_oracle(torch.float64),
        pair_loss=spec(Margin()),
        uncertainty=("kl", {"gamma": gamma}),
        zero_loss=zero_loss,
    )


def weights(loss: RobustPairLoss, of: Case) -> np.ndarray:
    """The drawn weights, as a matrix over all pairs."""
    i, j, weight = (part.numpy() for part in loss.weights(**of.tensors(torch.float64)))
    matrix = np.zeros((len(of.x), len(of.x if of.y is None else of.y)))
    matrix[i, j] = weight
    return matrix


def losses_of_pairs(of: Case) -> np.ndarray:
    s, positive, _ = of.matrices(torch.float64)
    return np.asarray(oracle.losses_and_slopes(spec(Margin()), s, positive)[0])


@pytest.mark.parametrize("situation", ["labels", "reference"])
def test_same_state_same_result_and_the_state_moves_on(situation: str) -> None:
    of = case("random", situation, 1)
    first, second = sampled(0.3, 12, seed=5), sampled(0.3, 12, seed=5)
    a, b = (find(loss, of, torch.float64) for loss in (first, second))
    assert a.value == b.value
    assert (a.gradient == b.gradient).all()
    following = [find(first, of, torch.float64).value for _ in range(5)]
    assert len({a.value, *following}) > 1
    assert following == [find(second, of, torch.float64).value for _ in range(5)]


def test_without_a_generator_the_default_one_is_drawn_from() -> None:
    of = case("random", "labels", 1)
    loss = RobustPairLoss(Margin(), KL(0.3, sample=12))
    with torch.random.fork_rng():
        torch.manual_seed(11)
        found = [find(loss, of, torch.float64).value for _ in range(3)]
        torch.manual_seed(11)
        assert found == [find(loss, of, torch.float64).value for _ in range(3)]
    assert len(set(found)) > 1


@pytest.mark.parametrize("zero_loss", ["keep", "drop"])
@pytest.mark.parametrize("situation", ["labels", "ignore", "reference"])
def test_value_and_gradient_are_the_mean_of_the_drawn_losses(
    situation: str, zero_loss: str
) -> None:
    of = case("random", situation, 2)
    drawn = weights(sampled(0.5, 7, seed=3, zero_loss=zero_loss), of)
    counts = 7 * drawn
    np.testing.assert_allclose(counts, counts.round(), atol=1e-12)
    assert counts.sum() == pytest.approx(7)
    found = find(sampled(0.5, 7, seed=3, zero_loss=zero_loss), of, torch.float64)
    losses = losses_of_pairs(of)
    # No penalty in the value: it is the plain mean.
    assert found.value == pytest.approx((drawn * losses).sum(), abs=1e-12)
    s, positive, _ = of.matrices(torch.float64)
    slope = oracle.losses_and_slopes(spec(Margin()), s, positive)[1]
    given = of.for_oracle(torch.float64)
    expected = oracle.assemble(0.0, drawn * slope, given["x"], given["y"], True, drawn, 1.0)
    np.testing.assert_allclose(found.gradient, expected.gradient, atol=1e-12)
    if of.y is not None:
        np.testing.assert_allclose(
            found.reference_gradient, expected.reference_gradient, atol=1e-12
        )
    if zero_loss == "drop":
        assert (losses[drawn > 0] > 0).all()


@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.5, float("inf")])
@pytest.mark.parametrize("situation", ["labels", "ignore", "reference"])
def test_frequencies_are_those_of_p(gamma: float, situation: str) -> None:
    of = case("random", situation, 4)
    p = optimal(of, gamma).weights
    counts = DRAWS * weights(sampled(gamma, DRAWS, seed=8), of)
    # Six standard deviations of a binomial count, and one more for counts of a few.
    assert (np.abs(counts - DRAWS * p) <= 6 * np.sqrt(DRAWS * p * (1 - p)) + 1).all()
    assert (counts[p == 0] == 0).all()
    # And all counts together: χ² has mean and half its variance equal to its freedom.
    likely = DRAWS * p >= 5
    chi_square = ((counts - DRAWS * p)[likely] ** 2 / (DRAWS * p[likely])).sum()
    freedom = likely.sum()
    assert chi_square <= freedom + 6 * np.sqrt(2 * freedom)


def test_draws_of_one_call_are_independent() -> None:
    # With two draws a call, both fall on the same pair with probability Σp².
    of = case("random", "labels", 4, n=5)
    p = optimal(of, 0.2).weights
    loss, calls = sampled(0.2, 2, seed=1), 600
    same = sum(weights(loss, of).max() == 1.0 for _ in range(calls))
    expected = (p**2).sum()
    assert abs(same / calls - expected) <= 6 * np.sqrt(expected * (1 - expected) / calls)


@pytest.mark.parametrize("zero_loss", ["keep", "drop"])
def test_value_and_gradient_are_unbiased(zero_loss: str) -> None:
    of = case("random", "labels", 6, n=8)
    outcome = optimal(of, 0.3, zero_loss)
    loss = sampled(0.3, 4, seed=2, zero_loss=zero_loss)
    found = [find(loss, of, torch.float64) for _ in range(600)]
    for draws, expected in (
        (np.array([f.value for f in found]), (outcome.weights * losses_of_pairs(of)).sum()),
        (np.array([f.gradient for f in found]), outcome.gradient),
    ):
        # Six standard errors of the mean, estimated from the draws.
        error = 6 * draws.std(axis=0) / np.sqrt(len(draws))
        assert (np.abs(draws.mean(axis=0) - expected) <= error + 1e-12).all()
    # Σ p* l is the optimum without its penalty, and so above it.
    assert np.mean([f.value for f in found]) > outcome.value


def test_more_draws_than_pairs_and_a_single_pair() -> None:
    of = case("random", "labels", 7, n=2)
    found = find(sampled(0.1, 1000, seed=1), of, torch.float64)
    assert found.value == pytest.approx(losses_of_pairs(of)[0, 1], abs=1e-12)


def test_nothing_is_drawn_where_nothing_is_left() -> None:
    # One pair, opposite and different: no loss. The generator is not used up either.
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    loss = RobustPairLoss(Contrastive(), KL(0.1, 5, generator), zero_loss="drop")
    of = Case(np.array([[1.0, 0.0], [-1.0, 0.0]]), labels=np.array([0, 1]))
    found = find(loss, of, torch.float64)
    assert found.value == 0.0
    assert (found.gradient == 0).all()
    assert (generator.get_state() == before).all()
