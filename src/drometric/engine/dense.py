"""Small batches: all pairs as one matrix, in as few calls as there can be.

Up to some hundreds of examples calls cost more than arithmetic. The formulas are those of
`reference`, with similarities from one product; where its rounding could decide, None is returned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from drometric.engine.arguments import Arguments
from drometric.engine.outcome import Outcome
from drometric.engine.plan import HARD_PAIRS, few
from drometric.engine.signs import read_signs
from drometric.engine.tile_losses import Linear
from drometric.engine.vectors import Vectors, read_vectors, rounding
from drometric.pair_losses import Binomial, PairLoss, is_hinge
from drometric.uncertainty.draw import draw

DOUBTFUL = 1e4
"""Losses that differ by less than so many times rounding are compared by exact similarities."""

LARGE = 1e15
"""A γ that is as good as ∞."""

F64 = torch.float64


class Losses(NamedTuple):
    """What every pair costs if it is one: (B, R)."""

    loss: Tensor
    slope: Tensor


@dataclass(frozen=True, eq=False)
class Dense:
    """All pairs of a small batch."""

    rows: Vectors
    columns: Vectors
    within: bool
    similarity: Tensor
    positive: Tensor
    negative: Tensor
    dtype: torch.dtype
    """That of the gradients."""

    def pairs(self, signs: tuple[bool, ...]) -> Tensor:
        """A mask of the pairs of some signs."""
        if len(signs) == 2:
            return self.positive | self.negative
        return self.positive if signs[0] else self.negative

    def losses(self, pair_loss: PairLoss) -> Losses:
        """The losses of all pairs, of either sign."""
        s, positive = self.similarity, self.positive
        if is_hinge(pair_loss) or isinstance(pair_loss, Linear):
            hinge = is_hinge(pair_loss)
            if isinstance(pair_loss, Linear):
                fallen = risen = pair_loss.threshold
            else:
                fallen, risen = pair_loss.kinks
            loss = torch.where(positive, fallen - s, s - risen)
            slope = torch.where(positive, -1.0, 1.0).to(s.dtype)
            if hinge:
                loss = loss.clamp_(min=0)
                slope.mul_(loss > 0)
            return Losses(loss, slope)
        (a, b), (c, d) = pair_loss.positive(s), pair_loss.negative(s)
        return Losses(torch.where(positive, a, c).to(s), torch.where(positive, b, d).to(s))

    def outcome(self, value: float, slope: Tensor) -> Outcome:
        """The gradients of a loss whose derivative in each ordered similarity is `slope`."""
        result = torch.full((), value, dtype=torch.float64, device=slope.device)
        rows = self.rows.rounded(self.dtype)
        columns = rows if self.within else self.columns.rounded(self.dtype)
        slope = (slope + slope.T if self.within else slope).to(self.dtype)
        of_rows = rows.pull_back(slope @ columns.vector)
        if self.within:
            return Outcome(result, of_rows)
        return Outcome(result, of_rows, columns.pull_back(slope.T @ rows.vector))


def knows(pair_loss: PairLoss) -> bool:
    """Whether a loss may be computed of what is no pair, too."""
    return is_hinge(pair_loss) or type(pair_loss) in (Linear, Binomial)


def is_small(arguments: Arguments) -> bool:
    """Whether float64 costs a call nothing."""
    x = arguments.embeddings
    return few(HARD_PAIRS, len(x), len(arguments.columns), x.device)


def read_dense(arguments: Arguments, *, normalize: bool) -> Dense | None:
    """All pairs of a call; None where the embeddings are out of the ordinary.

    The smallest batches are computed in float64, since it costs them nothing.
    """
    within = arguments.reference is None
    dtype = torch.float64 if is_small(arguments) else arguments.dtype
    rows = read_vectors(arguments.embeddings, normalize=normalize, dtype=dtype)
    columns = rows
    if not within:
        columns = read_vectors(arguments.columns, normalize=normalize, dtype=dtype)
    if rows is None or columns is None or not (rows.ordinary and columns.ordinary):
        return None
    everything = slice(0, len(rows)), slice(0, len(columns))
    positive, negative = read_signs(arguments).block(*everything)
    similarity = rows.vector @ columns.vector.T
    return Dense(rows, columns, within, similarity, positive, negative, arguments.dtype)


def doubtful(dense: Dense, pair_loss: PairLoss) -> bool:
    """Whether a pair stands so near to the kink of a hinge that rounding may move it across."""
    if not is_hinge(pair_loss):
        return False
    fallen, risen = pair_loss.kinks
    kink = torch.where(dense.positive, fallen, risen)
    near = (dense.similarity - kink).abs_() <= 2 * rounding(dense.rows, dense.columns)
    return bool((near & dense.pairs((True, False))).any())


def hardest(
    dense: Dense, pair_loss: PairLoss, wanted: list[tuple[Tensor, int]], *, drop: bool
) -> Outcome | None:
    """The mean of the k hardest pairs of each mask, averaged; None where ties may decide."""
    loss, slope = dense.losses(pair_loss)
    doubt = DOUBTFUL * rounding(dense.rows, dense.columns)
    total, weights = 0.0, []
    for mask, k in wanted:
        counted = mask.triu(1) if dense.within else mask
        among = loss.masked_fill(~counted, -math.inf).flatten()
        found, place = among.topk(min(k + 1, len(among)))
        values = found.tolist()
        there = len(values) - values.count(-math.inf)
        k = min(k, there)
        if not k:
            continue
        if there > k and values[k - 1] - values[k] < doubt and values[k - 1] != 0.0:
            return None
        if any(0 < value < doubt for value in values):
            return None
        if drop:
            k -= values[:k].count(0.0)
        if k:
            weights.append((place[:k], k))
            total += math.fsum(values[:k]) / k
    return _chosen(dense, slope, weights, total)


def _chosen(dense: Dense, slope: Tensor, chosen: list[tuple[Tensor, int]], total: float) -> Outcome:
    share = torch.zeros_like(slope)
    for place, k in chosen:
        share.view(-1)[place] = slope.view(-1)[place] / (k * len(chosen))
    return dense.outcome(total / max(len(chosen), 1), share)


def soft_maximum(
    dense: Dense, pair_loss: PairLoss, groups: list[tuple[Tensor, float]], *, drop: bool
) -> Outcome:
    """`γ log mean e^{l/γ}`, γ > 0, of each mask with its γ, averaged over those with pairs."""
    loss, slope = dense.losses(pair_loss)
    found = []
    for mask, gamma in groups:
        counted = mask & (loss > 0) if drop else mask
        hidden = ~counted
        masked = loss.masked_fill(hidden, -math.inf)
        highest = masked.amax()
        exponent = masked.sub(highest).div_(gamma) if gamma < LARGE else masked.mul(0.0)
        weight = exponent.exp_().masked_fill_(hidden, 0.0)
        sums = torch.stack((weight.sum(dtype=F64), counted.sum().to(F64), highest.to(F64)))
        mass, count, top = sums.tolist()
        if not count:
            continue
        value = top + gamma * math.log(mass / count) if mass <= 0.5 * count else None
        if value is None:
            value = _gentle(masked.masked_fill_(hidden, top), top, gamma, count)
        found.append((value, weight.div_(mass)))
    if not found:
        return dense.outcome(0.0, torch.zeros_like(slope))
    weight = found[0][1] if len(found) == 1 else torch.stack([w for _, w in found]).mean(0)
    return dense.outcome(sum(value for value, _ in found) / len(found), weight.mul_(slope))


def _gentle(loss: Tensor, top: float, gamma: float, count: float) -> float:
    """`γ log mean e^{l/γ}` where exponents are small: only `e^x - 1` keeps the digits of x."""
    below = loss.double().sub_(top)
    if gamma >= LARGE:
        return top + float(below.sum()) / count
    return top + gamma * math.log1p(float(below.div_(gamma).expm1_().sum()) / count)


def sampled(
    dense: Dense,
    pair_loss: PairLoss,
    gamma: float,
    count: int,
    generator: torch.Generator | None,
    *,
    drop: bool,
) -> Outcome:
    """The mean of `count` pairs drawn from p* ∝ e^{l/γ}: the very ones that `KL` draws."""
    loss, slope = dense.losses(pair_loss)
    share = torch.zeros_like(slope)
    place, losses = _unordered(dense, loss, drop=drop)
    if not len(place):
        return dense.outcome(0.0, share)
    weight = ((losses - losses.amax()) / gamma).exp()
    many = torch.tensor([count], device=loss.device)
    _, drawn = draw(weight[None], many, generator)
    often = torch.bincount(drawn, minlength=len(place)).to(loss.dtype) / count
    share.view(-1)[place] = often * slope.view(-1)[place]
    return dense.outcome(float((often * losses).sum()), share)


def spread(dense: Dense, pair_loss: PairLoss, rho: float, *, drop: bool) -> Outcome | None:
    """The χ² ball, while no weight would fall below 0; None past that, or where all losses tie."""
    loss, slope = dense.losses(pair_loss)
    share = torch.zeros_like(slope)
    place, losses = _unordered(dense, loss, drop=drop)
    n = len(place)
    if not n:
        return dense.outcome(0.0, share)
    mean = losses.mean()
    deviation = losses - mean
    sums = torch.stack((mean, deviation.square().sum(), deviation.amin())).tolist()
    if sums[1] <= n * (DOUBTFUL * rounding(dense.rows, dense.columns)) ** 2:
        return None
    step = math.sqrt(2 * rho / sums[1]) / n
    if not 1 / n + step * sums[2] > 0:
        return None
    share.view(-1)[place] = (step * deviation + 1 / n) * slope.view(-1)[place]
    return dense.outcome(sums[0] + step * sums[1], share)


def _unordered(dense: Dense, loss: Tensor, *, drop: bool) -> tuple[Tensor, Tensor]:
    """Where the pairs stand in the flattened matrix, each once, and their losses."""
    counted = dense.pairs((True, False))
    counted = counted.triu(1) if dense.within else counted
    if drop:
        counted = counted & (loss > 0)
    place = counted.flatten().nonzero()[:, 0]
    return place, loss.view(-1)[place]
