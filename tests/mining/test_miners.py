"""Miners against the oracle: the pairs they keep, and how often they draw which."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle_baselines
import pytest
import torch
from batches import KINDS, Case, case, cases
from hypothesis import given, settings
from hypothesis import strategies as st

from drometric import (
    DistanceWeighted,
    Margin,
    MinedPairLoss,
    MultiSimilarityMiner,
    SemiHard,
    ThresholdMiner,
)
from drometric.engine.arguments import Arguments
from drometric.engine.batch import Batch, read_batch

DTYPES = (torch.float64, torch.float32)

# The miner, the oracle's name for it and its parameters. The exact batches have similarities at
# both ends of the band of 1/4 and 1/2: they belong to neither side.
KEEPING: list[tuple[Any, str, dict[str, float]]] = [
    (make(**known), name, known)
    for make, name, known in (
        (SemiHard, "semi_hard", {"margin": 0.2, "threshold": 0.5}),
        (SemiHard, "semi_hard", {"margin": 0.25, "threshold": 0.5}),
        (SemiHard, "semi_hard", {"margin": 1.5, "threshold": 0.75}),
        (ThresholdMiner, "threshold", {"margin": 0.2, "threshold": 0.5}),
        (ThresholdMiner, "threshold", {"margin": 0.25, "threshold": 0.25}),
        (ThresholdMiner, "threshold", {"margin": -0.5, "threshold": 0.0}),
        (MultiSimilarityMiner, "multi_similarity", {"epsilon": 0.1}),
        (MultiSimilarityMiner, "multi_similarity", {"epsilon": 0.25}),
        (MultiSimilarityMiner, "multi_similarity", {"epsilon": -0.2}),
    )
]
SITUATIONS = ("labels", "imbalanced", "ignore", "multilabel", "reference, similar, ignore")


def mine(miner: Any, of: Case, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    mined = miner.mine(read(of, dtype))
    return mined.positive.numpy(), mined.negative.numpy()


def read(of: Case, dtype: torch.dtype) -> Batch:
    return read_batch(Arguments(**of.tensors(dtype)), normalize=True)


def assert_kept(row: tuple[Any, str, dict[str, float]], of: Case, dtype: torch.dtype) -> None:
    miner, name, known = row
    expected = oracle_baselines.mine(name, *of.matrices(dtype), **known)
    for found, wanted in zip(mine(miner, of, dtype), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("row", KEEPING, ids=lambda row: str(row[0]))
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept(kind: str, row: tuple[Any, str, dict[str, float]]) -> None:
    for seed, situation in enumerate(SITUATIONS):
        for dtype in DTYPES:
            assert_kept(row, case(kind, situation, seed), dtype)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sampled_from(KEEPING), cases())
def test_what_is_kept_in_any_batch(row: tuple[Any, str, dict[str, float]], of: Case) -> None:
    assert_kept(row, of, torch.float64)


def test_an_anchor_of_one_sign_keeps_nothing_in_multi_similarity_mining() -> None:
    of = Case(np.eye(3), labels=np.array([0, 0, 1]))  # the third has negatives only
    positive, negative = mine(MultiSimilarityMiner(epsilon=10.0), of, torch.float64)
    assert positive.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert negative.tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 0]]


def drawing(name: str, known: dict[str, float], seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    make: Any = {"semi_hard": SemiHard, "distance_weighted": DistanceWeighted}[name]
    return make(**known, generator=generator)


DRAWN: list[tuple[str, dict[str, float]]] = [
    ("semi_hard", {"margin": 0.3, "threshold": 0.5, "per_positive": 1}),
    ("semi_hard", {"margin": 0.9, "threshold": 0.4, "per_positive": 3}),
    ("distance_weighted", {"cutoff": 0.5, "nonzero_loss_cutoff": 1.4}),
    ("distance_weighted", {"cutoff": 1.0, "nonzero_loss_cutoff": 1.2}),
    # Beyond every distance: opposite rows, of density 0, are drawn above all.
    ("distance_weighted", {"cutoff": 0.1, "nonzero_loss_cutoff": 3.0}),
]


def probabilities(name: str, known: dict[str, float], of: Case) -> tuple[np.ndarray, np.ndarray]:
    given = dict(known, dimension=of.x.shape[1])
    return oracle_baselines.draw_probabilities(name, *of.matrices(torch.float64), **given)


def drawable(kind: str, situation: str, seed: int) -> Case:
    """A case of at least two dimensions, which DistanceWeighted needs."""
    while (of := case(kind, situation, seed, n=12)).x.shape[1] < 2:
        seed += 1000
    return of


@pytest.mark.parametrize(("name", "known"), DRAWN)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_number_of_draws_and_nothing_impossible(
    situation: str, name: str, known: dict[str, float]
) -> None:
    for seed, kind in enumerate(KINDS):
        of = drawable(kind, situation, seed)
        draws, probability = probabilities(name, known, of)
        positives = of.matrices(torch.float64)[1]
        for dtype in DTYPES:
            for seed_of_draws in range(3):
                positive, negative = mine(drawing(name, known, seed_of_draws), of, dtype)
                np.testing.assert_array_equal(positive, positives)
                np.testing.assert_array_equal(negative.sum(axis=1), draws)
                np.testing.assert_array_equal(negative, negative.round())
                assert (negative[probability == 0] == 0).all()


@pytest.mark.parametrize(("name", "known"), DRAWN)
@pytest.mark.parametrize("kind", ["random", "exact", "clustered"])
def test_frequencies(kind: str, name: str, known: dict[str, float]) -> None:
    of = drawable(kind, "reference", 3)
    draws, probability = probabilities(name, known, of)
    assert draws.any()
    miner, batch, calls = drawing(name, known, 0), read(of, torch.float64), 400
    counts = sum(miner.mine(batch).negative for _ in range(calls)).numpy()
    total = (calls * draws)[:, None]
    # Six standard deviations of a binomial count, and one more for counts of a few.
    bound = 6 * np.sqrt(total * probability * (1 - probability)) + 1
    assert (np.abs(counts - total * probability) <= bound).all()
    # All counts together: χ² has mean and half its variance equal to its freedom.
    likely = total * probability >= 5
    expected = (total * probability)[likely]
    chi_square = ((counts[likely] - expected) ** 2 / expected).sum()
    freedom = likely.sum()
    assert chi_square <= freedom + 6 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(("name", "known"), DRAWN)
def test_the_same_generator_state_draws_the_same(name: str, known: dict[str, float]) -> None:
    of = case("random", "reference", 3, n=16)
    first, second = drawing(name, known, 4), drawing(name, known, 4)
    runs = [[mine(miner, of, torch.float64)[1] for _ in range(4)] for miner in (first, second)]
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != runs[0][0]).any() for a in runs[0][1:])  # and the state moves on


@pytest.mark.parametrize("make", [DistanceWeighted, lambda: SemiHard(1.9, 0.95, per_positive=2)])
def test_without_a_generator_the_default_one_is_drawn_from(make: Any) -> None:
    of, runs = case("random", "labels", 3, n=16), []
    with torch.random.fork_rng():
        for _ in range(2):
            torch.manual_seed(5)
            runs.append(np.stack([mine(make(), of, torch.float64)[1] for _ in range(4)]))
    np.testing.assert_array_equal(*runs)
    assert (runs[0][0] != runs[0][1:]).any()


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize(("name", "known"), DRAWN)
def test_the_ends_of_the_random_numbers_draw_nothing_impossible(
    name: str, known: dict[str, float], number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A number of exactly 0 falls on the edge of a first entry that has no weight.
    monkeypatch.setattr(
        torch, "rand", lambda *shape, **_: torch.full(shape, number, dtype=torch.float64)
    )
    of = case("random", "reference", 3, n=16)
    draws, probability = probabilities(name, known, of)
    negative = mine(drawing(name, known, 0), of, torch.float64)[1]
    np.testing.assert_array_equal(negative.sum(axis=1), draws)
    assert draws.any()
    assert (negative[probability == 0] == 0).all()


def test_distance_weighted_needs_directions() -> None:
    loss = MinedPairLoss(Margin(), DistanceWeighted())
    with pytest.raises(ValueError, match="at least 2 columns for DistanceWeighted; got d = 1"):
        loss(torch.ones(3, 1), torch.tensor([0, 0, 1]))
    loss = MinedPairLoss(Margin(), DistanceWeighted(), normalize=False)
    with pytest.raises(ValueError, match="normalize=False"):
        loss(torch.ones(3, 2), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize("per_positive", [None, 1])
@pytest.mark.parametrize("of", [(0, None), (3, 0), (0, 3), (0, 0), (1, None), (1, 1)], ids=str)
def test_batches_with_nothing_to_mine(of: tuple[int, int | None], per_positive: int | None) -> None:
    rows, others = of
    given = {"embeddings": torch.ones(rows, 3), "labels": torch.zeros(rows, dtype=torch.long)}
    if others is not None:
        given["reference"] = torch.ones(others, 3)
        given["reference_labels"] = torch.ones(others, dtype=torch.long)
    batch = read_batch(Arguments(**given), normalize=True)
    shape = (rows, rows if others is None else others)
    for miner in (
        SemiHard(per_positive=per_positive),
        ThresholdMiner(),
        MultiSimilarityMiner(),
        DistanceWeighted(),
    ):
        mined = miner.mine(batch)
        assert mined.positive.shape == mined.negative.shape == shape
        assert not mined.positive.any()
