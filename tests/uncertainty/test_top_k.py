"""Which pairs are the K hardest: the ones that float64 gives, ties by smallest i, then j."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
import torch

from drometric import (
    BalancedTopK,
    Binomial,
    Contrastive,
    Margin,
    RobustPairLoss,
    Simplex,
    TopK,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Its hinges are active at all similarities, and at 0 both signs have the same loss.
EVERY_PAIR = Margin(margin=2.0, threshold=0.0)

Pairs = list[tuple[int, int]]


def chosen(uncertainty: Any, pair_loss: Any = EVERY_PAIR, **given: torch.Tensor) -> Pairs:
    i, j, _ = RobustPairLoss(pair_loss, uncertainty).weights(**given)
    return list(zip(i.tolist(), j.tolist(), strict=True))


def near_ties(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Ten rows nearly in one direction: their similarities are 1 but for some 1e-8."""
    rng = np.random.default_rng(seed)
    centre = np.tile(rng.normal(size=8), (10, 1))
    return torch.tensor(np.concatenate([centre, 2e-4 * rng.normal(size=(10, 8))], axis=1)).to(dtype)


def most_similar_first(x: torch.Tensor) -> Pairs:
    """All pairs in the order of exact arithmetic on the rows as their dtype holds them."""
    exact = [[Fraction(v) for v in row] for row in x.double().tolist()]

    def product_of(i: int, j: int) -> Fraction:
        return sum((p * q for p, q in zip(exact[i], exact[j], strict=True)), Fraction(0))

    # All similarities are positive, so that their squares, which need no root, order them.
    squared = {
        (i, j): product_of(i, j) ** 2 / (product_of(i, i) * product_of(j, j))
        for i, j in combinations(range(len(x)), 2)
    }
    ranking = sorted(squared, key=lambda pair: -squared[pair])
    # float64 can tell them apart: that is the premise of the tests below.
    assert min(squared[a] - squared[b] for a, b in pairwise(ranking)) > 1e-14
    return ranking


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_near_ties_are_decided_as_float64_decides_them(dtype: torch.dtype, seed: int) -> None:
    x = near_ties(dtype, seed)
    ranking = most_similar_first(x)
    in_float32 = torch.nn.functional.normalize(x.float())
    i, j = torch.tensor(ranking).T
    # float32 can not: in its similarities a pair has an equal, or a larger one behind it.
    assert ((in_float32 @ in_float32.T)[i, j].diff() >= 0).sum() > 10
    negative, positive = torch.arange(len(x)), torch.zeros(len(x), dtype=torch.long)
    for k in (1, 2, 7, 20, 44):
        hard_negatives, hard_positives = sorted(ranking[:k]), sorted(ranking[-k:])
        assert chosen(TopK(k), embeddings=x, labels=negative) == hard_negatives
        assert chosen(TopK(k), embeddings=x, labels=positive) == hard_positives
        assert chosen(BalancedTopK(2 * k), embeddings=x, labels=negative) == hard_negatives
        assert chosen(BalancedTopK(2 * k), embeddings=x, labels=positive) == hard_positives
    assert chosen(Simplex(), embeddings=x, labels=negative) == ranking[:1]
    assert chosen(Simplex(), embeddings=x, labels=positive) == ranking[-1:]


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_near_ties_across_two_sets(dtype: torch.dtype) -> None:
    x = near_ties(dtype, 9)
    ranking = [(i, j - 4) for i, j in most_similar_first(x) if i < 4 <= j]
    given = {"embeddings": x[:4], "labels": torch.zeros(4, dtype=torch.long)}
    given |= {"reference": x[4:], "reference_labels": torch.ones(6, dtype=torch.long)}
    for k in (1, 5, 11):
        assert chosen(TopK(k), **given) == sorted(ranking[:k])


@pytest.mark.parametrize("rows", [2, 3, 5, 9, 12])
@pytest.mark.parametrize(
    "pair_loss",
    [EVERY_PAIR, Contrastive(threshold=-0.5), *(Binomial(threshold=t / 7) for t in range(-7, 7))],
    ids=str,
)
def test_of_equal_pairs_the_first_are_chosen(pair_loss: Any, rows: int) -> None:
    # Orthogonal rows: all similarities are exactly 0, so all losses of one sign are equal. The
    # losses are computed many at a time, and must come out equal wherever a pair stands.
    x, pairs = torch.eye(rows), list(combinations(range(rows), 2))
    for labels in (torch.arange(rows), torch.zeros(rows, dtype=torch.long)):
        for k in {1, len(pairs) // 2 + 1, len(pairs)}:
            given = {"embeddings": x, "labels": labels}
            assert chosen(TopK(k), pair_loss, **given) == pairs[:k]
            assert chosen(BalancedTopK(2 * k), pair_loss, **given) == pairs[:k]
        assert chosen(Simplex(), pair_loss, **given) == pairs[:1]


def test_ties_between_the_signs_go_by_position_too() -> None:
    labels = torch.tensor([0, 1, 0, 1, 1])
    pairs = list(combinations(range(5), 2))
    for k in range(1, 11):
        assert chosen(TopK(k), embeddings=torch.eye(5), labels=labels) == pairs[:k]
    positive = [(i, j) for i, j in pairs if labels[i] == labels[j]]
    negative = [pair for pair in pairs if pair not in positive]
    for k in range(2, 9):
        both = sorted(positive[: k // 2] + negative[: k - k // 2])
        assert chosen(BalancedTopK(k), embeddings=torch.eye(5), labels=labels) == both


def test_ties_in_the_users_numbering_whatever_the_classes() -> None:
    # Three copies of each of four rows, their classes mixed: of the tied pairs the first count.
    rng = np.random.default_rng(5)
    copies = rng.permutation(np.repeat(np.arange(4), 3))
    x = torch.tensor(rng.normal(size=(4, 6)))[copies]
    labels = torch.tensor(copies)
    similarity = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x).T
    negative = [(i, j) for i, j in combinations(range(12), 2) if copies[i] != copies[j]]
    # Rounded, so that the nine copies of a pair are equal here as well.
    ranking = sorted(negative, key=lambda pair: -round(float(similarity[pair]), 9))
    for k in (1, 4, 9, 13, 30):
        # Positives are parallel here and have no loss: they stand behind all negatives.
        found = chosen(TopK(k), Margin(margin=1.0, threshold=-1.0), embeddings=x, labels=labels)
        assert found == sorted(ranking[:k])


def test_ties_across_two_sets_go_by_row_then_column() -> None:
    given = {"embeddings": torch.eye(8)[:3], "reference": torch.eye(8)[3:]}
    pairs = list(product(range(3), range(5)))
    for k in (1, 4, 8, 15):
        similar = torch.zeros(3, 5, dtype=torch.bool)
        assert chosen(TopK(k), **given, similar=similar) == pairs[:k]
