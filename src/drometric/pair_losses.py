"""Pair losses: what one pair of examples costs, given its similarity.

A pair loss has two methods, `positive` for pairs that are similar and `negative` for pairs that
are not. Each takes similarities of any shape and returns the losses and their slopes (the
derivative of the loss in the similarity; 0 at a kink). A loss falls with the similarity of a
positive pair and rises with that of a negative one. To add one, write those two methods:

>>> import torch
>>> class Squared:
...     def positive(self, similarity):
...         return (1 - similarity) ** 2, -2 * (1 - similarity)
...     def negative(self, similarity):
...         return (1 + similarity) ** 2, 2 * (1 + similarity)
>>> from drometric import RobustPairLoss, TopK
>>> loss = RobustPairLoss(Squared(), TopK(k=2))
>>> loss(torch.eye(3), torch.tensor([0, 0, 1]))
tensor(1.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from drometric.checks import number, shapes


@runtime_checkable
class PairLoss(Protocol):
    """What a similarity costs: loss and slope of similar and of dissimilar pairs."""

    def positive(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and slope of pairs that are similar."""
        ...

    def negative(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and slope of pairs that are not similar."""
        ...


@runtime_checkable
class Hinge(PairLoss, Protocol):
    """A pair loss that is 0 on one side of a kink and has the slope 1 on the other.

    The engine needs less time for one: a pair beyond its kink has no gradient.
    """

    @property
    def kinks(self) -> tuple[float, float]:
        """From which similarity on a positive, and up to which a negative pair costs nothing."""
        ...


def is_hinge(pair_loss: object) -> TypeGuard[Hinge]:
    """Whether the very class that a pair loss has its methods from says where its kinks are."""
    names = ("kinks", "positive", "negative")
    owners = {_owner(type(pair_loss), name) for name in names}
    return len(owners) == 1 and None not in owners


def _owner(kind: type, name: str) -> type | None:
    """The class that a class has a method from."""
    return next((owner for owner in kind.__mro__ if name in vars(owner)), None)


def check_pair_loss(pair_loss: object) -> None:
    """A pair loss, not its class or its name, or a `ValueError`."""
    if isinstance(pair_loss, type) or not isinstance(pair_loss, PairLoss):
        raise ValueError(
            "pair_loss must be an object with methods positive and negative, such as Margin(); "
            f"got {pair_loss!r}"
        )


def evaluate(pair_loss: PairLoss, similarity: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """The losses and slopes of a vector of pairs, some of them positive."""
    loss, slope = torch.empty_like(similarity), torch.empty_like(similarity)
    for mask, sign in ((positive, True), (~positive, False)):
        given = similarity[mask]
        if len(given):
            loss[mask], slope[mask] = evaluate_sign(pair_loss, given, positive=sign)
    return loss, slope


def evaluate_sign(
    pair_loss: PairLoss, similarity: Tensor, *, positive: bool
) -> tuple[Tensor, Tensor]:
    """The losses and slopes of pairs of one sign, checked: the loss may be a user's."""
    loss, slope = evaluate_shapes(pair_loss, similarity, positive=positive)
    # A sum is finite only where everything in it is, or next to the largest numbers there are.
    if not math.isfinite(float(loss.sum() + slope.sum())):
        finite = loss.isfinite() & slope.isfinite()
        if not bool(finite.all()):
            raise ValueError(
                f"{type(pair_loss).__name__} must return finite losses and slopes; got NaN or "
                f"infinity among those of {loss.numel()} pairs"
            )
    return loss, slope


def evaluate_shapes(
    pair_loss: PairLoss, similarity: Tensor, *, positive: bool
) -> tuple[Tensor, Tensor]:
    """The same, finite or not."""
    of_sign = pair_loss.positive if positive else pair_loss.negative
    found = of_sign(similarity)
    wanted = f"{tuple(similarity.shape)}, {tuple(similarity.shape)}"
    if shapes(found) != wanted:
        raise ValueError(
            f"{type(pair_loss).__name__}.{of_sign.__name__} must return two tensors, losses and "
            f"slopes, shaped like the similarities that it is given, {wanted}; got {shapes(found)}"
        )
    loss, slope = (part.to(similarity) for part in found)
    return loss, slope


@dataclass(frozen=True)
class Margin:
    """The margin loss: `[m + λ - s]+` for a positive pair, `[m + s - λ]+` for a negative one.

    Positive pairs should be more similar than `threshold + margin`, negative pairs less similar
    than `threshold - margin`. At the kink the slope is 0. (Wu et al. 2017, in the form of the
    paper's section 3.3: `l_ij = [m + y_ij (λ - S_ij)]+` with y = ±1.)

    Args:
        margin: m, half the width of the band between the two signs.
        threshold: λ, the similarity in the middle of that band.

    >>> import torch
    >>> Margin().negative(torch.tensor([0.2, 0.5]))
    (tensor([0.0000, 0.2000]), tensor([0., 1.]))
    """

    margin: float = 0.2
    threshold: float = 0.5

    def __post_init__(self) -> None:
        number("margin", self.margin)
        number("threshold", self.threshold)

    @property
    def kinks(self) -> tuple[float, float]:
        return self.threshold + self.margin, self.threshold - self.margin

    def positive(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        excess = self.margin + (self.threshold - similarity)
        return excess.clamp(min=0), -(excess > 0).to(excess.dtype)

    def negative(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        excess = self.margin + (similarity - self.threshold)
        return excess.clamp(min=0), (excess > 0).to(excess.dtype)


@dataclass(frozen=True)
class Binomial:
    """The binomial deviance: smooth, and steeper for negative pairs than for positive ones.

    `2/β log(1 + e^{-β(s-λ)})` for a positive pair, `2/α log(1 + e^{α(s-λ)})` for a negative one
    (Yi et al. 2014). Never zero, so `zero_loss="drop"` drops only what underflows.

    Args:
        scale_positive: β, how sharply positive pairs are told from the threshold.
        scale_negative: α, the same for negative pairs.
        threshold: λ.
    """

    scale_positive: float = 2.0
    scale_negative: float = 40.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        number("scale_positive", self.scale_positive, above=0.0)
        number("scale_negative", self.scale_negative, above=0.0)
        number("threshold", self.threshold)

    def positive(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        loss, slope = _deviance(self.scale_positive, self.threshold - similarity)
        return loss, -slope

    def negative(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        return _deviance(self.scale_negative, similarity - self.threshold)


def _deviance(scale: float, excess: Tensor) -> tuple[Tensor, Tensor]:
    exponent = scale * excess
    # Not softplus, which is linear beyond a cut-off and wrong there by 2e-9, nor logaddexp and
    # sigmoid, whose last bit depends on where in the tensor an entry stands: ties must stay ties.
    small = torch.exp(-exponent.abs())
    loss = exponent.clamp(min=0) + small.log1p()
    return 2 / scale * loss, 2 * torch.where(exponent > 0, 1.0, small) / (1 + small)


@dataclass(frozen=True)
class Contrastive:
    """The contrastive loss: `[1 - s]+` for a positive pair, `[s - λ]+` for a negative one.

    Positive pairs are pulled together without end, negative pairs pushed apart until they are
    less similar than `threshold` (Hadsell et al. 2006, in similarities). At a kink the slope is 0.

    Args:
        threshold: λ, below which a negative pair costs nothing.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        number("threshold", self.threshold)

    @property
    def kinks(self) -> tuple[float, float]:
        return 1.0, self.threshold

    def positive(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        excess = 1 - similarity
        return excess.clamp(min=0), -(excess > 0).to(excess.dtype)

    def negative(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        excess = similarity - self.threshold
        return excess.clamp(min=0), (excess > 0).to(excess.dtype)
