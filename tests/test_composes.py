"""Losses within what else PyTorch offers: compiling, autocast, functional calls, threads."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import drometric as dm
from drometric.engine.plan import planned

LOSSES = {
    "tiles": dm.RobustPairLoss(dm.Margin(), dm.KL(0.1)),
    "few pairs": dm.RobustPairLoss(dm.Margin(), dm.TopK(per_example=2.0)),
    "strips": dm.MultiSimilarity(miner=dm.MultiSimilarityMiner()),
    "plain": dm.RobustPairLoss(dm.Binomial(), dm.KL(0.1, sample=8)),
}
WAYS = [(20, "dense"), (200, "tiles")]

pytestmark = [
    pytest.mark.parametrize(("rows", "path"), WAYS),
    pytest.mark.usefixtures("_planned"),
]
every_loss = pytest.mark.parametrize("name", LOSSES)
# What draws gives another result at each call, and threads would share the numbers of a generator.
losses_that_draw_nothing = pytest.mark.parametrize(
    "name", [name for name in LOSSES if name != "plain"]
)


@pytest.fixture
def _planned(path: str) -> Iterator[None]:
    with planned(path=path):
        yield


def loss_of(name: str) -> nn.Module:
    """A loss; if it draws, from the same state each time."""
    loss = copy.deepcopy(LOSSES[name])
    if name == "plain":
        sampled = dm.KL(0.1, sample=8, generator=torch.Generator().manual_seed(1))
        loss = dm.RobustPairLoss(dm.Binomial(), sampled)
    return loss


def setting(rows: int, device: torch.device) -> tuple[nn.Module, Tensor, Tensor]:
    """A model, its input, and the labels."""
    generator = torch.Generator().manual_seed(rows)
    images = torch.randn(rows, 10, generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 8))
    return model.to(device), images.to(device), (torch.arange(rows) % (rows // 4)).to(device)


def gradients(model: nn.Module) -> list[Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert len(found) == 4
    model.zero_grad()
    return found


def expected(name: str, rows: int, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    model, images, labels = setting(rows, device)
    value = loss_of(name)(model(images), labels)
    value.backward()
    return value.detach(), gradients(model)


def assert_same(found: list[Tensor], wanted: list[Tensor], tolerance: float = 1e-6) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * float(b.abs().max()) + 1e-9)


@every_loss
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns of is not ours
def test_compiled(name: str, rows: int, inside: bool, device: torch.device) -> None:
    value, wanted = expected(name, rows, device)
    model, images, labels = setting(rows, device)
    loss = loss_of(name)
    torch._dynamo.reset()

    def step(images: Tensor) -> Tensor:
        return loss(model(images), labels)

    if inside:
        found = torch.compile(step, backend="aot_eager")(images)
    else:
        found = loss(torch.compile(model, backend="aot_eager")(images), labels)
    found.backward()
    torch.testing.assert_close(found.detach(), value, rtol=1e-6, atol=1e-9)
    assert_same(gradients(model), wanted)


@every_loss
def test_autocast(name: str, rows: int, device: torch.device) -> None:
    model, images, labels = setting(rows, device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        embeddings = model(images)
        assert embeddings.dtype == torch.bfloat16
        embeddings.retain_grad()
        value = loss_of(name)(embeddings, labels)
    value.backward()
    assert value.dtype == torch.float32
    # Of the same embeddings, but outside: to the last bit.
    outside = embeddings.detach().requires_grad_()
    again = loss_of(name)(outside, labels)
    again.backward()
    assert torch.equal(value, again)
    assert torch.equal(embeddings.grad, outside.grad)
    assert len(gradients(model)) == 4


@every_loss
def test_functional_call(name: str, rows: int, device: torch.device) -> None:
    value, wanted = expected(name, rows, device)
    model, images, labels = setting(rows, device)
    loss = loss_of(name)

    def objective(parameters: dict[str, Tensor]) -> Tensor:
        return loss(torch.func.functional_call(model, parameters, (images,)), labels)

    parameters = {n: p.detach() for n, p in model.named_parameters()}
    found, at = torch.func.grad_and_value(objective)(parameters)
    torch.testing.assert_close(at, value, rtol=1e-6, atol=1e-9)
    assert_same(list(found.values()), wanted)
    loss = loss_of(name)
    assert_same(list(torch.func.grad(objective)(parameters).values()), wanted)


@every_loss
def test_gradients_of_several_backward_calls_add_up(
    name: str, rows: int, device: torch.device
) -> None:
    _, wanted = expected(name, rows, device)
    model, images, labels = setting(rows, device)
    for factor in (1.0, 0.5):
        (factor * loss_of(name)(model(images), labels)).backward()
    assert_same(gradients(model), [1.5 * gradient for gradient in wanted])


@every_loss
def test_copies(name: str, rows: int, device: torch.device) -> None:
    _, images, labels = setting(rows, device)
    loss = LOSSES[name]
    value = loss_of(name)(images, labels)
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert repr(twin) == repr(loss)
        assert twin.state_dict() == loss.state_dict()
        assert twin is not loss
        if name != "plain":  # which draws
            assert torch.equal(twin(images, labels), value)


@every_loss
@pytest.mark.skipif(torch.cuda.is_available(), reason="then DataParallel takes the devices")
def test_data_parallel_without_devices(name: str, rows: int) -> None:
    cpu = torch.device("cpu")
    value, _ = expected(name, rows, cpu)
    model, images, labels = setting(rows, cpu)
    found = nn.DataParallel(loss_of(name), device_ids=[])(model(images), labels)
    assert torch.equal(found.detach(), value)


@losses_that_draw_nothing
def test_two_threads_at_once(name: str, rows: int, path: str, device: torch.device) -> None:
    loss = LOSSES[name]

    def call(seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, 8, generator=generator).to(device).requires_grad_()
        with planned(path=path):  # a new thread has no plan
            value = loss(x, torch.arange(rows, device=device) % (rows // 4))
        value.backward()
        assert x.grad is not None
        return value.detach(), x.grad

    alone = [call(seed) for seed in range(8)]
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(call, range(8)))
    for (a, b), (c, d) in zip(alone, together, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)


@losses_that_draw_nothing
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_coarse_products_of_the_user_s_choice(
    name: str, rows: int, device: torch.device, precision: str
) -> None:
    _, images, labels = setting(rows, device)
    before = LOSSES[name].touched(images, labels)
    torch.set_float32_matmul_precision(precision)
    try:
        after = LOSSES[name].touched(images, labels)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")
    for part, wanted in zip(after, before, strict=True):
        assert torch.equal(part, wanted)
