"""The baselines against the oracle: values, gradients and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import oracle_baselines
import pytest
import torch
from batches import (
    Case,
    assert_close_to,
    case,
    cases,
    find,
    in_every_situation,
    spec,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from drometric import (
    HAP2S,
    Binomial,
    DistanceWeighted,
    LiftedStructure,
    Margin,
    MinedPairLoss,
    MultiSimilarity,
    MultiSimilarityMiner,
    NPair,
    SemiHard,
    ThresholdMiner,
    Triplet,
)
from drometric.engine.arguments import Arguments
from drometric.engine.batch import read_batch
from drometric.mining import mined_pairs

DTYPES = (torch.float64, torch.float32)

# The class, the oracle's name for it, and parameters that both of them know.
LOSSES: list[tuple[type, str, dict[str, Any]]] = [
    (LiftedStructure, "lifted_structure", {"margin": 1.0}),
    (LiftedStructure, "lifted_structure", {"margin": -1.5, "reduction": "sum"}),
    (MultiSimilarity, "multi_similarity", {"alpha": 2.0, "beta": 50.0, "threshold": 0.5}),
    (
        MultiSimilarity,
        "multi_similarity",
        {"alpha": 30.0, "beta": 0.5, "threshold": -0.2, "reduction": "sum"},
    ),
    (HAP2S, "hap2s", {"gamma": 0.1, "margin": 0.1, "weighting": "exponential"}),
    (HAP2S, "hap2s", {"gamma": 5.0, "margin": 1.0, "weighting": "exponential"}),
    (HAP2S, "hap2s", {"gamma": 0.1, "margin": 0.5, "weighting": "polynomial", "reduction": "sum"}),
    (NPair, "n_pair", {}),
    *(
        (Triplet, "triplet", {"margin": margin, "triplets": triplets})
        for margin in (0.1, 0.75)
        for triplets in ("all", "hard", "semi-hard", "hardest")
    ),
]
MINERS = [
    SemiHard(),
    SemiHard(margin=1.0, threshold=0.25),
    ThresholdMiner(),
    MultiSimilarityMiner(),
    MultiSimilarityMiner(epsilon=-0.1),
]
DRAWING = [
    lambda seed: SemiHard(margin=1.0, per_positive=2, generator=seed),
    lambda seed: DistanceWeighted(generator=seed),
]


def check(loss: Any, name: str, of: Case, mined: Any = None, **known: Any) -> None:
    """`mined` makes the counts that the oracle is to use, from the case and the dtype."""
    for dtype in DTYPES:
        counts = None if mined is None else mined(of, dtype)
        outcome = oracle_baselines.baseline(name, **of.for_oracle(dtype), mined=counts, **known)
        assert_close_to(outcome, find(loss, of, dtype), of, dtype)


def counts_of(miner: Any, normalize: bool = True) -> Any:
    """What the miner itself gives for a case, as the oracle takes it."""

    def counts(of: Case, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            mined = miner.mine(read_batch(Arguments(**of.tensors(dtype)), normalize=normalize))
        return mined.positive.numpy(), mined.negative.numpy()

    return counts


def usable(name: str, known: dict[str, Any], kind: str) -> bool:
    """Leaves out what has no one right answer to 1e-10.

    The polynomial form takes the root of 2 - 2 s, which near s = 1 has half of s's digits. Of
    several equally hard pairs "hardest" shares the slope (as KL-G at γ = 0 does), where the
    oracle takes the first: `test_equally_hard_pairs_share_the_slope` looks at those.
    """
    if known.get("weighting") == "polynomial":
        return kind not in ("collapsed", "duplicated", "tiny")
    return known.get("triplets") != "hardest" or kind not in ("exact", "duplicated", "tiny")


@pytest.mark.parametrize("index", range(len(LOSSES)), ids=lambda i: f"{i} {LOSSES[i][1]}")
def test_every_baseline_agrees_with_the_oracle(index: int) -> None:
    make, name, known = LOSSES[index]
    for turn in range(2):
        for seed, kind, situation in in_every_situation(index + 3 * turn):
            if usable(name, known, kind):
                # No parallel rows on both sides where their distance is looked at.
                copies = 0 if known.get("weighting") == "polynomial" else 2
                of = case(kind, situation, seed, copies=copies)
                check(make(**known), name, of, **known)
                if kind in ("random", "exact"):
                    check(make(**known, normalize=False), name, of, normalize=False, **known)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.sampled_from([row for row in LOSSES if usable(row[1], row[2], "tiny")]), cases())
def test_any_baseline_in_any_batch(row: tuple[type, str, dict[str, Any]], of: Case) -> None:
    make, name, known = row
    check(make(**known), name, of, **known)


@pytest.mark.parametrize("miner", MINERS, ids=str)
def test_mined_pairs_take_the_place_of_all_pairs(miner: Any) -> None:
    mined = counts_of(miner)
    for seed, kind, situation in in_every_situation(MINERS.index(miner)):
        of = case(kind, situation, seed)
        for pair_loss in (Margin(), Binomial()):
            loss = MinedPairLoss(pair_loss, miner)
            check(loss, "mined_pair_loss", of, mined, pair_loss=spec(pair_loss))
        for make, name, known in LOSSES[:4]:
            check(make(**known, miner=miner), name, of, mined, **known)


@pytest.mark.parametrize("make_miner", DRAWING)
def test_drawn_pairs_count_as_often_as_they_are_drawn(make_miner: Any) -> None:
    # The same seed for the loss and for the oracle's counts, in every call.
    class Seeded:
        def mine(self, batch: Any) -> Any:
            return make_miner(torch.Generator().manual_seed(7)).mine(batch)

    mined, miner = counts_of(Seeded()), Seeded()
    repeated = 0.0
    for seed, kind, situation in in_every_situation(3)[::2]:
        of = case(kind if kind != "tiny" else "random", situation, seed, n=12)
        repeated = max(repeated, mined(of, torch.float64)[1].max())
        loss = MinedPairLoss(Margin(), miner)
        check(loss, "mined_pair_loss", of, mined, pair_loss=spec(Margin()))
        for make, name, known in LOSSES[:4]:
            check(make(**known, miner=miner), name, of, mined, **known)
    assert repeated >= 2  # else multiplicity would not have been looked at


def test_a_miner_of_the_users_is_asked_what_to_take() -> None:
    class Positives:
        def mine(self, batch: Any) -> Any:
            mined = mined_pairs(None, batch)
            return mined._replace(negative=torch.zeros_like(mined.negative))

    of = case("random", "labels", 3)
    check(
        MinedPairLoss(Binomial(), Positives()),
        "mined_pair_loss",
        of,
        counts_of(Positives()),
        pair_loss=spec(Binomial()),
    )
    # Lifted structure needs both signs.
    assert find(LiftedStructure(miner=Positives()), of, torch.float64).value == 0.0


def test_equally_hard_pairs_share_the_slope() -> None:
    # Batch-hard is KL-G at γ = 0 where its own hinge and those of the pairs are active.
    given_to_both = {
        "pair_loss": ("margin", {"margin": 2.0, "threshold": 0.0}),
        "uncertainty": ("per_anchor_kl", {"gamma_positive": 0.0, "gamma_negative": 0.0}),
    }
    for seed in range(8):
        of = case("exact", ("labels", "reference")[seed % 2], seed, n=12)
        s, positive, negative = of.matrices(torch.float64)
        assert positive.any(axis=1).all()
        assert negative.any(axis=1).all()
        found = find(Triplet(margin=3.0, triplets="hardest"), of, torch.float64)
        outcome = oracle.robust_pair_loss(**of.for_oracle(torch.float64), **given_to_both)
        np.testing.assert_allclose(found.gradient, outcome.gradient, atol=1e-12)
        hardest = np.where(negative, s, -np.inf).max(1) - np.where(positive, s, np.inf).min(1) + 3.0
        assert found.value == pytest.approx(hardest.mean(), abs=1e-12)


@pytest.mark.parametrize("index", range(len(LOSSES)), ids=lambda i: f"{i} {LOSSES[i][1]}")
def test_weights_are_the_slopes_of_unordered_pairs(index: int) -> None:
    make, name, known = LOSSES[index]
    loss = make(**known)
    for seed, situation in enumerate(("labels", "ignore", "reference")):
        of = case("clustered", situation, seed, copies=0)
        given_oracle = of.for_oracle(torch.float64)
        i, j, weight = (part.numpy() for part in loss.weights(**of.tensors(torch.float64)))
        outcome = oracle_baselines.baseline(name, **given_oracle, **known)
        matrix = np.zeros_like(outcome.weights)
        matrix[i, j] = weight
        assert (weight > 0).all()
        np.testing.assert_allclose(matrix, outcome.weights, rtol=1e-9, atol=1e-12)
        report = loss.report(**of.tensors(torch.float64))
        assert report.active_positive_pairs + report.active_negative_pairs == len(weight)
        assert report.positive_weight + report.negative_weight == pytest.approx(weight.sum())
