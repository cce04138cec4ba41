"""A loss is a function of its arguments: it remembers no call and changes nothing it is given."""

import copy

import pytest
import torch
from every_loss import FAMILIES, one_of
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_leaves_no_trace(family: str) -> None:
    loss = one_of(family)
    before, children = dict(vars(loss)), list(loss.named_modules())
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(6, 4, generator=generator)
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    ignore = torch.eye(6).bool()
    given = copy.deepcopy((embeddings, labels, ignore))
    for look in (loss, loss.weights, loss.report):
        look(embeddings, labels, ignore=ignore)
    assert vars(loss) == before
    assert list(loss.named_modules()) == children
    assert not list(loss.buffers())
    for now, then in zip((embeddings, labels, ignore), given, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("family", [f for f in FAMILIES if "drawn" not in f and "sampled" not in f])
def test_what_draws_nothing_uses_no_random_numbers(family: str) -> None:
    embeddings, labels = torch.eye(6) + 0.3, torch.tensor([0, 0, 0, 1, 1, 2])
    before = torch.get_rng_state()
    one_of(family)(embeddings, labels)
    assert torch.equal(torch.get_rng_state(), before)


class LargestTensor(TorchDispatchMode):
    """The number of entries of the largest tensor that is made meanwhile."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.entries = max(self.entries, tensor.numel())
        return made


@pytest.mark.parametrize("family", FAMILIES)
def test_no_loss_holds_as_much_as_the_triplets(family: str) -> None:
    # Two classes: there are a hundred times as many triplets as pairs.
    rows = 400
    embeddings = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.zeros(rows, dtype=torch.int64)
    labels[::2] = 1
    with LargestTensor() as largest:
        one_of(family, rows)(embeddings, labels).backward()
    assert largest.entries <= 2**22 + rows**2
