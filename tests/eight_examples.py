"""A small batch for identities: eight random examples of three classes."""

import torch

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])  # every anchor has both signs, in unequal groups


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 4, dtype=torch.float64, generator=generator)


def value_and_gradient(loss, x, labels=LABELS, **how):
    x = x.clone().requires_grad_()
    value = loss(x, labels, **how)
    value.backward()
    return value.item(), x.grad
