"""The robust loss against the oracle: values, gradients, weights and reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from batches import (
    Case,
    assert_close_to,
    case,
    cases,
    find,
    in_every_situation,
    smallest_gamma,
    spec,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from drometric import (
    KL,
    BalancedKL,
    BalancedTopK,
    Binomial,
    ChiSquare,
    Contrastive,
    Margin,
    PerAnchorKL,
    RobustPairLoss,
    Simplex,
    TopK,
    Uniform,
)

DTYPES = (torch.float64, torch.float32)
INF = float("inf")

# Margin(0.25, 0.25) has its kinks at similarities 0 and 1/2, which the exact batches hit.
PAIR_LOSSES = [
    Margin(),
    Margin(margin=0.25, threshold=0.25),
    Binomial(),
    Binomial(scale_positive=5.0, scale_negative=3.0, threshold=0.1),
    Contrastive(),
]


def per_anchor_gammas(rows: int) -> torch.Tensor:
    """One γ an anchor, all different kinds of them."""
    return torch.tensor([0.1, 0.0, 1.0, INF, 0.01, 1e12, 0.3], dtype=torch.float64).repeat(3)[:rows]


# Each set is made from the number of rows, which only the tensors of γ need.
SETS: dict[str, Callable[[int], Any]] = {
    "uniform": lambda b: Uniform(),
    "simplex": lambda b: Simplex(),
    **{f"top_k {k}": lambda b, k=k: TopK(k) for k in (1, 2, 7, 10**9)},
    **{f"top_k {e} B": lambda b, e=e: TopK(per_example=e) for e in (0.01, 0.7, 2.0)},
    **{f"balanced_top_k {k}": lambda b, k=k: BalancedTopK(k) for k in (1, 2, 9, 10**9)},
    **{f"balanced_top_k {e} B": lambda b, e=e: BalancedTopK(per_example=e) for e in (0.01, 1.5)},
    **{f"kl {g}": lambda b, g=g: KL(g) for g in (0.0, 1e-3, 0.1, 1.0, 1e12, INF)},
    **{
        f"balanced_kl {p} {n}": lambda b, p=p, n=n: BalancedKL(p, n)
        for p, n in [(0.0, 0.1), (1e-3, INF), (1.0, 0.0), (1e12, 0.02)]
    },
    **{
        f"per_anchor_kl {p} {n} {slack} {reduction}": (
            lambda b, p=p, n=n, slack=slack, reduction=reduction: PerAnchorKL(
                p, n, slack, reduction=reduction
            )
        )
        for p, n in [(0.0, 0.0), (1e-3, 0.1), (1.0, 1.0), (INF, 1e12)]
        for slack, reduction in [(False, "mean"), (True, "sum")]
    },
    "per_anchor_kl gammas": lambda b: PerAnchorKL(per_anchor_gammas(b), 0.2),
    "per_anchor_kl gammas, slack": lambda b: PerAnchorKL(
        0.5, per_anchor_gammas(b).float(), slack=True, reduction="sum"
    ),
    **{f"chi_square {r}": lambda b, r=r: ChiSquare(r) for r in (0.0, 1e-6, 0.1, 2.0, 30.0, 1e9)},
}
GRID = [(pair_loss, name) for pair_loss in PAIR_LOSSES for name in SETS]


def drop_is_ambiguous(pair_loss: Any, of: Case) -> bool:
    """Whether only rounding says if a positive pair of parallel rows has a contrastive loss.

    Its 1 - s is 0 or ±2e-16 then (0 for exact rows), and dropping it or not changes n. Where it
    stays nothing depends on it: parallel rows have no gradient.
    """
    s, positive, _ = of.matrices(torch.float64)
    whole = np.array_equal(of.x, of.x.round())
    parallel = bool((np.abs(1 - s[positive]) < 1e-14).any())
    return isinstance(pair_loss, Contrastive) and parallel and not whole


def robust_outcome(
    pair_loss: Any,
    uncertainty: Any,
    zero_loss: str,
    of: Case,
    dtype: torch.dtype,
    normalize: bool = True,
) -> oracle.Outcome:
    return oracle.robust_pair_loss(
        **of.for_oracle(dtype),
        pair_loss=spec(pair_loss),
        uncertainty=spec(uncertainty),
        zero_loss=zero_loss,
        normalize=normalize,
    )


def check(pair_loss: Any, name: str, zero_loss: str, normalize: bool, of: Case) -> None:
    uncertainty = SETS[name](len(of.x))
    loss = RobustPairLoss(pair_loss, uncertainty, zero_loss=zero_loss, normalize=normalize)
    for dtype in DTYPES:
        outcome = robust_outcome(pair_loss, uncertainty, zero_loss, of, dtype, normalize)
        assert_close_to(outcome, find(loss, of, dtype), of, dtype, smallest_gamma(uncertainty))


@pytest.mark.parametrize(("pair_loss", "name"), GRID, ids=str)
def test_every_setting_agrees_with_the_oracle(pair_loss: Any, name: str) -> None:
    for seed, kind, situation in in_every_situation(GRID.index((pair_loss, name))):
        of = case(kind, situation, seed)
        check(pair_loss, name, "keep", True, of)
        if drop_is_ambiguous(pair_loss, of):
            of = case("exact", situation, seed)
        check(pair_loss, name, "drop", True, of)


@pytest.mark.parametrize("name", SETS)
def test_rows_as_they_are(name: str) -> None:
    for i, situation in enumerate(("labels", "ignore", "reference", "reference, multilabel")):
        # Similarities of every size, so that both hinges are active and inactive.
        of = case(("random", "exact")[i % 2], situation, seed=i)
        for pair_loss in PAIR_LOSSES:
            check(pair_loss, name, ("keep", "drop")[i // 2], False, of)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.sampled_from(PAIR_LOSSES),
    st.sampled_from(sorted(SETS)),
    st.sampled_from(["keep", "drop"]),
    cases(),
)
def test_any_setting_in_any_batch(pair_loss: Any, name: str, zero_loss: str, of: Case) -> None:
    if zero_loss == "drop" and drop_is_ambiguous(pair_loss, of):
        zero_loss = "keep"
    check(pair_loss, name, zero_loss, True, of)


def assert_feasible(uncertainty: Any, weight: np.ndarray, of: Case, n: int) -> None:
    """That p is in U, as far as U is a condition on p alone; n is the number of pairs."""
    _, positive, negative = of.matrices(torch.float64)
    if not isinstance(uncertainty, PerAnchorKL):
        assert weight.sum() == pytest.approx(1.0, abs=1e-6)
    elif not uncertainty.slack:  # each anchor's group has weight 1
        groups = positive.any(1).sum() + negative.any(1).sum()
        share = len(of.x) if uncertainty.reduction == "mean" else 1
        assert weight.sum() == pytest.approx(groups / share, rel=1e-6)
    if isinstance(uncertainty, TopK) and uncertainty.k is not None:
        assert weight.max() <= 1 / min(uncertainty.k, n) + 1e-7
    if isinstance(uncertainty, ChiSquare):
        squares = (n * weight - 1) ** 2
        assert squares.sum() + (n - len(weight)) <= 2 * uncertainty.rho + 1e-5 * n


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("zero_loss", ["keep", "drop"])
@pytest.mark.parametrize("name", SETS)
def test_weights_are_the_optimal_p(name: str, zero_loss: str, dtype: torch.dtype) -> None:
    for seed, situation in enumerate(("labels", "ignore", "reference")):
        for kind in ("random", "exact"):
            # No copies: which similarity of parallel rows is the largest, only rounding says.
            of = case(kind, situation, seed, copies=0)
            uncertainty = SETS[name](len(of.x))
            loss = RobustPairLoss(Margin(), uncertainty, zero_loss=zero_loss)
            i, j, weight = (part.detach().numpy() for part in loss.weights(**of.tensors(dtype)))
            assert weight.dtype == np.dtype(str(dtype).removeprefix("torch."))
            assert (weight > 0).all()
            if of.y is None:
                assert (i < j).all()
            place = i * of.matrices(dtype)[0].shape[1] + j
            assert (np.diff(place) > 0).all()
            outcome = robust_outcome(Margin(), uncertainty, zero_loss, of, dtype)
            matrix = np.zeros_like(outcome.weights)
            matrix[i, j] = weight
            tolerance = 1e-10 if dtype == torch.float64 else 1e-6
            np.testing.assert_allclose(matrix, outcome.weights, rtol=tolerance, atol=tolerance)
            if zero_loss == "keep":
                _, positive, negative = of.matrices(dtype)
                counted = (positive | negative).sum() // (1 if of.y is not None else 2)
                assert_feasible(uncertainty, weight.astype(float), of, int(counted))


@pytest.mark.parametrize("zero_loss", ["keep", "drop"])
@pytest.mark.parametrize("name", SETS)
def test_report_counts_pairs_and_adds_up_weights(name: str, zero_loss: str) -> None:
    for seed, situation in enumerate(("imbalanced", "similar", "reference, similar, ignore")):
        of = case(("random", "exact", "clustered")[seed], situation, seed)
        pair_loss, uncertainty = PAIR_LOSSES[seed], SETS[name](len(of.x))
        report = RobustPairLoss(pair_loss, uncertainty, zero_loss=zero_loss).report(
            **of.tensors(torch.float64)
        )
        p = robust_outcome(pair_loss, uncertainty, zero_loss, of, torch.float64).weights
        s, positive, negative = of.matrices(torch.float64)
        if of.y is None:  # unordered pairs
            positive, negative = np.triu(positive, 1), np.triu(negative, 1)
        active = oracle.losses_and_slopes(spec(pair_loss), s, positive)[0] > 0
        assert report.positive_pairs == positive.sum()
        assert report.negative_pairs == negative.sum()
        assert report.active_positive_pairs == (positive & active).sum()
        assert report.active_negative_pairs == (negative & active).sum()
        assert report.positive_weight == pytest.approx(p[positive].sum(), rel=1e-9, abs=1e-12)
        assert report.negative_weight == pytest.approx(p[negative].sum(), rel=1e-9, abs=1e-12)
        assert report.effective_pairs == pytest.approx(p.sum() ** 2 / (p**2).sum(), rel=1e-9)
