"""Batches of some hundred examples, computed as they are by default, against the plain path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import smallest_gamma
from plain_path import assert_as_plain, found_on
from torch import Tensor

import drometric as dm
from drometric.engine.arguments import Arguments


def clustered(n: int, d: int, device: torch.device) -> Arguments:
    """Classes of five that overlap; some rows are there twice, so that pairs tie."""
    generator = torch.Generator().manual_seed(n)
    labels = torch.randperm(n, generator=generator) // 5
    centres = torch.randn(n, d, generator=generator)
    x = centres[labels] + torch.randn(n, d, generator=generator)
    x[-5:] = x[:5]
    return Arguments(x.to(device), labels.to(device))


MEDIUM = {
    "top-2B": dm.RobustPairLoss(dm.Margin(), dm.TopK(per_example=2.0)),
    "top-2B, drop": dm.RobustPairLoss(dm.Margin(), dm.TopK(per_example=2.0), zero_loss="drop"),
    "balanced": dm.RobustPairLoss(dm.Binomial(), dm.BalancedTopK(per_example=2.0)),
    "simplex": dm.RobustPairLoss(dm.Contrastive(), dm.Simplex()),
    "uniform": dm.RobustPairLoss(dm.Margin(), dm.Uniform(), zero_loss="drop"),
    "kl": dm.RobustPairLoss(dm.Margin(), dm.KL(0.1)),
    "kl, drop": dm.RobustPairLoss(dm.Margin(), dm.KL(0.1), zero_loss="drop"),
    "kl, smooth": dm.RobustPairLoss(dm.Binomial(), dm.KL(0.01)),
    "balanced-kl": dm.RobustPairLoss(dm.Margin(0.1, 0.1), dm.BalancedKL(0.1, 0.003)),
    "anchor-kl": dm.RobustPairLoss(dm.Margin(0.1, 0.1), dm.PerAnchorKL(0.1, 0.05)),
    "anchor-kl, slack": dm.RobustPairLoss(dm.Contrastive(), dm.PerAnchorKL(0.5, 0.07, slack=True)),
    "chi-square": dm.RobustPairLoss(dm.Margin(), dm.ChiSquare(3.0)),
    "ms": dm.MultiSimilarity(),
    "lifted": dm.LiftedStructure(),
    "n-pair": dm.NPair(),
    "mined": dm.MinedPairLoss(dm.Margin(), dm.SemiHard()),
}


@pytest.mark.parametrize("plan", [{}, {"path": "tiles"}], ids=str)
@pytest.mark.parametrize("name", MEDIUM)
def test_the_default_plan_of_larger_batches(name: str, plan: Any, device: torch.device) -> None:
    loss = MEDIUM[name]
    gamma = smallest_gamma(loss.uncertainty) if isinstance(loss, dm.RobustPairLoss) else None
    for n, d in ((301, 64), (640, 32)):
        assert_as_plain(loss, clustered(n, d, device), gamma, **plan)


def scattered(n: int, d: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("path", ["dense", "tiles"])
def test_pairs_without_a_loss_have_no_slope(path: str) -> None:
    # Nearly all losses are 0 or small against γ, so that the many zeros have most of the weight.
    arguments = Arguments(scattered(400, 256), torch.arange(400) // 4)
    for gamma in (0.02, 0.05, 0.07, 0.1):
        for slack in (False, True):
            uncertainty = dm.PerAnchorKL(0.5, gamma, slack=slack)
            assert_as_plain(
                dm.RobustPairLoss(dm.Contrastive(0.05), uncertainty), arguments, path=path
            )


@pytest.mark.parametrize("path", ["dense", "tiles"])
def test_positive_pairs_of_parallel_rows_are_dropped(path: str) -> None:
    x, labels = scattered(60, 8), torch.arange(60) // 4
    for dtype in (torch.float32, torch.float64):
        twice = torch.cat((x, 3 * x)).to(dtype)
        arguments = Arguments(twice, labels.repeat(2))
        for uncertainty in (dm.Uniform(), dm.KL(0.1), dm.PerAnchorKL(0.1, 0.1), dm.TopK(k=10**6)):
            loss = dm.RobustPairLoss(dm.Contrastive(), uncertainty, zero_loss="drop")
            assert_as_plain(loss, arguments, path=path)


@pytest.mark.parametrize("path", ["dense", "tiles"])
def test_the_mean_of_losses_far_below_the_largest_there_could_be(path: str) -> None:
    x = scattered(40, 5) * 10.0 ** torch.linspace(-3, 3, 40)[:, None]
    arguments = Arguments(x, torch.arange(40) % 4)
    for uncertainty in (dm.Uniform(), dm.KL(float("inf")), dm.KL(1e12)):
        loss = dm.RobustPairLoss(dm.Margin(), uncertainty, normalize=False)
        plain, found = (found_on(loss, arguments, path=p) for p in ("plain", path))
        torch.testing.assert_close(found.value, plain.value, rtol=1e-6, atol=0)
