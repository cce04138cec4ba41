"""`touched` says which examples of a batch need a backward pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from every_loss import FAMILIES, one_of
from torch import Tensor, nn

import drometric as dm
from drometric.engine.plan import planned

# Each call of one that draws draws anew.
LOSSES = [f for f in FAMILIES if "sampled" not in f and "drawn" not in f and "distance" not in f]
REPRESENTATIVES = ["top-8", "balanced-top-8", "simplex", "kl", "anchor-kl", "ms", "triplet-hard"]


@pytest.fixture(params=["dense", "tiles"], autouse=True)
def _path(request: pytest.FixtureRequest) -> Iterator[None]:
    with planned(path=request.param):
        yield


def batch(rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    labels = torch.arange(rows) % max(1, rows // 4)
    return torch.randn(rows, 12, generator=generator).to(device), labels.to(device)


@pytest.mark.parametrize("family", LOSSES)
def test_value_rows_and_gradient_are_those_of_the_loss(family: str, device: torch.device) -> None:
    for rows in (13, 190):
        x, labels = batch(rows, device)
        x.requires_grad_()
        value = one_of(family, rows)(x, labels)
        value.backward()
        found = one_of(family, rows).touched(x, labels)
        assert torch.equal(found.value, value.detach())
        assert not found.value.requires_grad
        assert x.grad is not None
        reached = (x.grad != 0).any(1).nonzero()[:, 0]
        assert torch.equal(found.rows, reached)
        assert torch.equal(found.gradient, x.grad[reached])


@pytest.mark.parametrize("family", ["top-8", "kl"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_gradients_have_the_dtype_of_the_embeddings(family: str, dtype: torch.dtype) -> None:
    x, labels = batch(190, torch.device("cpu"))
    found = one_of(family, 190).touched(x.to(dtype), labels)
    assert found.gradient.dtype == dtype
    assert found.gradient.shape == (len(found.rows), 12)


@pytest.mark.parametrize("family", REPRESENTATIVES)
def test_only_the_touched_rows_need_a_graph(family: str, device: torch.device) -> None:
    for rows in (13, 190):
        images, labels = batch(rows, device)
        model = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 6)).to(device)
        loss = one_of(family, rows)
        loss(model(images), labels).backward()
        whole = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        with torch.no_grad():
            embeddings = model(images)
        found = loss.touched(embeddings, labels)
        model(images[found.rows]).backward(found.gradient)
        for parameter, expected in zip(model.parameters(), whole, strict=True):
            size = float(expected.abs().max())
            torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-5 * size + 1e-9)


@pytest.mark.parametrize("family", REPRESENTATIVES)
def test_across_two_sets(family: str, device: torch.device) -> None:
    for rows, others in ((9, 14), (170, 220)):
        x, labels = batch(rows, device)
        y, reference_labels = batch(others, device)
        x.requires_grad_()
        given = {"labels": labels, "reference": y, "reference_labels": reference_labels}
        value = one_of(family, rows)(x, **given)
        value.backward()
        found = one_of(family, rows).touched(x, **given)
        assert torch.equal(found.value, value.detach())
        assert x.grad is not None
        reached = (x.grad != 0).any(1).nonzero()[:, 0]
        assert torch.equal(found.rows, reached)
        # The same sums, but for the ones of the reference, which nobody wanted.
        torch.testing.assert_close(found.gradient, x.grad[reached], rtol=1e-5, atol=1e-9)


def test_few_rows_are_touched_by_few_pairs() -> None:
    x, labels = batch(400, torch.device("cpu"))
    rows = dm.RobustPairLoss(dm.Margin(), dm.TopK(k=10)).touched(x, labels).rows
    assert 2 <= len(rows) <= 20
    assert bool((rows.diff() > 0).all())


@pytest.mark.parametrize("rows", [4, 200])
def test_no_row_at_all(rows: int) -> None:
    x, labels = torch.eye(rows), torch.arange(rows)
    for uncertainty in (dm.TopK(k=5), dm.KL(0.1), dm.PerAnchorKL(0.1, 0.1)):
        found = dm.RobustPairLoss(dm.Margin(), uncertainty).touched(x, labels)
        assert abs(float(found.value)) < 1e-12
        assert found.rows.shape == (0,)
        assert found.gradient.shape == (0, rows)
