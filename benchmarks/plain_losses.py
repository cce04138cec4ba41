"""The losses in plain autograd, as one would write them in PyTorch without a library.

Each takes embeddings and integer labels, builds the matrix of all similarities in the precision
of the embeddings and leaves the gradient to autograd. Classes must have two examples or more.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

THRESHOLD = 0.5


def uniform(x: Tensor, labels: Tensor, *, margin: float) -> Tensor:
    loss = _margin_losses(x, labels, margin)
    return loss.triu(1).sum() / _pairs(loss)


def simplex(x: Tensor, labels: Tensor, *, margin: float) -> Tensor:
    # No loss is below 0: the zeros that triu leaves are never chosen before a pair.
    return _margin_losses(x, labels, margin).triu(1).max()


def top_k(x: Tensor, labels: Tensor, *, margin: float, k: int) -> Tensor:
    return _margin_losses(x, labels, margin).triu(1).flatten().topk(k).values.mean()


def balanced_top_k(x: Tensor, labels: Tensor, *, margin: float, k: int) -> Tensor:
    loss = _margin_losses(x, labels, margin).triu(1)
    same = _same(labels)
    of_positives = loss[same.triu(1)].topk(k // 2).values.mean()
    of_negatives = loss.masked_fill(same, 0.0).flatten().topk(k - k // 2).values.mean()
    return (of_positives + of_negatives) / 2


def kl(x: Tensor, labels: Tensor, *, margin: float, gamma: float) -> Tensor:
    loss = _margin_losses(x, labels, margin)
    exponent = (loss / gamma).fill_diagonal_(-torch.inf)
    return gamma * (exponent.logsumexp(1).logsumexp(0) - math.log(2 * _pairs(loss)))


def kl_sample(x: Tensor, labels: Tensor, *, margin: float, gamma: float, sample: int) -> Tensor:
    loss = _margin_losses(x, labels, margin)
    with torch.no_grad():
        weight = ((loss - loss.max()) / gamma).exp().triu(1).flatten()
        # torch.multinomial stops at 2^24 pairs, and float32 cannot add up so many.
        cumulative = weight.cumsum(0, dtype=torch.float64)
        place = torch.rand(sample, dtype=torch.float64, device=x.device) * cumulative[-1]
        drawn = torch.searchsorted(cumulative, place, right=True)
    return loss.flatten()[drawn].mean()


def balanced_kl(x: Tensor, labels: Tensor, *, margin: float, gamma: float) -> Tensor:
    exponent = _margin_losses(x, labels, margin) / gamma
    same = _same(labels)
    positives = exponent[same.triu(1)]
    of_positives = positives.logsumexp(0) - math.log(len(positives))
    of_negatives = exponent.masked_fill(same, -torch.inf).logsumexp(1).logsumexp(0)
    negatives = _pairs(exponent) - len(positives)
    return gamma * (of_positives + of_negatives - math.log(2 * negatives)) / 2


def per_anchor_kl(x: Tensor, labels: Tensor, *, margin: float, gamma: float) -> Tensor:
    exponent = _margin_losses(x, labels, margin) / gamma
    positive, negative = _signs(labels)
    of_positives = _log_sum_exp(exponent, positive) - positive.sum(1, dtype=x.dtype).log()
    of_negatives = _log_sum_exp(exponent, negative) - negative.sum(1, dtype=x.dtype).log()
    return gamma * (of_positives + of_negatives).mean()


def chi_square(x: Tensor, labels: Tensor, *, margin: float, rho: float) -> Tensor:
    """Right for a ρ so small that every pair keeps a weight."""
    loss = _margin_losses(x, labels, margin)
    # The matrix without its diagonal, as a view. Each pair is in it twice: that changes neither
    # mean nor variance.
    both = loss.flatten()[:-1].view(len(loss) - 1, len(loss) + 1)[:, 1:]
    return both.mean() + (2 * rho / _pairs(loss) * both.var(correction=0)).sqrt()


def multi_similarity(x: Tensor, labels: Tensor) -> Tensor:
    alpha, beta = 2.0, 50.0
    excess = _similarities(x) - THRESHOLD
    positive, negative = _signs(labels)
    # softplus(log Σ e^x) is log(1 + Σ e^x).
    of_positives = functional.softplus(_log_sum_exp(-alpha * excess, positive)) / alpha
    of_negatives = functional.softplus(_log_sum_exp(beta * excess, negative)) / beta
    return (of_positives + of_negatives).mean()


def lifted_structure(x: Tensor, labels: Tensor) -> Tensor:
    similarity = _similarities(x)
    positive, negative = _signs(labels)
    of_positives = _log_sum_exp(1.0 - similarity, positive)
    return (of_positives + _log_sum_exp(similarity, negative)).relu().mean()


def _similarities(x: Tensor) -> Tensor:
    unit = functional.normalize(x)
    return unit @ unit.T


def _margin_losses(x: Tensor, labels: Tensor, margin: float) -> Tensor:
    """`[m + y (λ - s)]+`, y = ±1, of all pairs, (B, B)."""
    sign = torch.where(_same(labels), 1.0, -1.0)
    return (margin + sign * (THRESHOLD - _similarities(x))).relu()


def _same(labels: Tensor) -> Tensor:
    return labels[:, None] == labels


def _signs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which ordered pairs are positive, and which negative."""
    same = _same(labels)
    return same.clone().fill_diagonal_(False), ~same


def _pairs(matrix: Tensor) -> int:
    return len(matrix) * (len(matrix) - 1) // 2


def _log_sum_exp(exponent: Tensor, mask: Tensor) -> Tensor:
    return exponent.masked_fill(~mask, -torch.inf).logsumexp(1)
