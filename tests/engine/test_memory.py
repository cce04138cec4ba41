"""No loss holds as much as one number for each pair of a large batch."""

from __future__ import annotations

import pytest
import torch
from every_loss import FAMILIES, one_of
from torch.utils._python_dispatch import TorchDispatchMode

import drometric as dm
from drometric.engine.plan import planned

ROWS = 2300
MOST = 2**22
"""Entries of the largest block of similarities that is ever made; there are 2300² = 5.3 million."""

ONE_BY_ONE = {"anchor-kl-slack-each", "anchor-kl-slack-0-inf", "anchor-kl-inf"}
"""Families that go the same way as others here."""


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that is made meanwhile."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self.entries = max(self.entries, tensor.numel())
        return made


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 4, generator=generator), torch.arange(ROWS) // 5


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - ONE_BY_ONE))
def test_no_tensor_is_as_large_as_all_pairs(family: str) -> None:
    embeddings, labels = batch()
    with planned(tile=(512, 512)), Largest() as largest:
        value = one_of(family, ROWS)(embeddings.requires_grad_(), labels)
        value.backward()
    assert ROWS < largest.entries <= MOST


def test_the_weights_of_selected_pairs_need_no_more() -> None:
    embeddings, labels = batch()
    with Largest() as largest:
        i, _, weight = dm.RobustPairLoss(dm.Margin(), dm.TopK(k=100)).weights(embeddings, labels)
    assert len(i) == 100
    assert float(weight.sum()) == pytest.approx(1.0)
    assert largest.entries <= MOST


@pytest.mark.parametrize("zero_loss", ["keep", "drop"])
@pytest.mark.parametrize(
    "uncertainty", [dm.TopK(40), dm.TopK(400), dm.TopK(10**6), dm.Simplex(), dm.BalancedTopK(31)]
)
def test_selected_weights_are_those_of_the_plain_path(uncertainty: object, zero_loss: str) -> None:
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(40, 6, generator=generator)
    embeddings[3] = embeddings[7]
    labels = torch.randint(8, (40,), generator=generator)
    for pair_loss in (dm.Margin(), dm.Margin(-0.5, 0.9)):  # the second leaves few pairs a loss
        loss = dm.RobustPairLoss(pair_loss, uncertainty, zero_loss=zero_loss)
        with planned(path="plain"):
            expected = loss.weights(embeddings, labels)
        with planned(path="tiles"):
            found = loss.weights(embeddings, labels)
        for part, wanted in zip(found, expected, strict=True):
            assert torch.equal(part, wanted)
