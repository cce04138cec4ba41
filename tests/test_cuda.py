"""On a GPU every loss gives what it gives on the CPU, and chooses the very same pairs.

CI has no GPU. `pytest tests/test_cuda.py`, and with `--device cuda` `tests/test_touched.py`,
`tests/test_composes.py` and `tests/engine/test_larger_batches.py`, passed last on 2026-11-20:
NVIDIA H200, torch 2.11.0+cu130, Python 3.12.
"""

import pytest
import torch
from every_loss import FAMILIES, one_of

LOSSES = {
    f"{family}: {form}": build
    for family, forms in FAMILIES.items()
    for form, build in forms.items()
}

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def clustered(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes that overlap, and some rows that are there twice, so that pairs tie."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(rows) % (rows // 5)
    centres = torch.randn(rows // 5, 32, generator=generator)
    embeddings = centres[labels] + torch.randn(rows, 32, generator=generator)
    embeddings[-5:] = embeddings[:5]
    return embeddings.to(dtype), labels


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_gives_the_same_on_both(name: str, dtype: torch.dtype) -> None:
    embeddings, labels = clustered(60, dtype)
    results = []
    for device in ("cpu", "cuda"):
        loss = LOSSES[name](60)
        x = embeddings.detach().clone().to(device).requires_grad_()
        value = loss(x, labels.to(device))
        value.backward()
        assert value.device.type == x.grad.device.type == device
        results.append((float(value.detach()), x.grad.cpu().double()))
    (value, gradient), (on_gpu, gradient_on_gpu) = results
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    assert on_gpu == pytest.approx(value, rel=1e-6, abs=1e-10)
    error = (gradient - gradient_on_gpu).abs().max()
    assert error <= tolerance * max(float(gradient.abs().max()), 1e-6)


@pytest.mark.parametrize("name", ["top-2B", "balanced-top-2B", "simplex"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_hardest_pairs_are_the_very_same(name: str, dtype: torch.dtype) -> None:
    embeddings, labels = clustered(300, dtype)
    loss = one_of(name, 300)
    here = loss.weights(embeddings, labels)
    there = loss.weights(embeddings.cuda(), labels.cuda())
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a, b.cpu())


def test_similarities_are_the_same_to_the_last_bit() -> None:
    from drometric.engine.rows import read_rows

    embeddings, _ = clustered(300, torch.float64)
    here, there = (
        read_rows(embeddings, normalize=True),
        read_rows(embeddings.cuda(), normalize=True),
    )
    assert torch.equal(here.similarity(here), there.similarity(there).cpu())


@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_changes_nothing(family: str) -> None:
    embeddings, labels = (tensor.cuda() for tensor in clustered(60, torch.float32))
    plain = one_of(family, 60)(embeddings, labels)
    with torch.autocast("cuda", dtype=torch.float16):
        under_autocast = one_of(family, 60)(embeddings, labels)
    assert torch.equal(plain, under_autocast)


def test_labels_on_the_other_device_are_an_error() -> None:
    embeddings, labels = clustered(60, torch.float32)
    message = "labels must be on the device of embeddings, cuda:0; got .* on cpu"
    with pytest.raises(ValueError, match=message):
        one_of("kl", 60)(embeddings.cuda(), labels)
