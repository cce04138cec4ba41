"""What miners give: ordered pairs, counted."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from drometric.checks import shapes
from drometric.engine.batch import Batch
from drometric.uncertainty.draw import draw


class Mined(NamedTuple):
    """How often each ordered pair is taken: two (B, R) float64 matrices, one row an anchor.

    A mask in place of a matrix takes each of its pairs once.
    """

    positive: Tensor
    negative: Tensor


@runtime_checkable
class Miner(Protocol):
    """Anything that chooses ordered pairs from a batch.

    A miner may say `by_anchor = True` if what it takes of an anchor's pairs depends on no other
    row: then it may be given a strip, a batch of some of the anchors with all columns, at a time.
    """

    def mine(self, batch: Batch) -> Mined:
        """The pairs to look at."""
        ...


def counts(mask: Tensor) -> Tensor:
    """Each pair of the mask, once."""
    return mask.to(torch.float64)


def mines_by_anchor(miner: Miner | None) -> bool:
    """Whether the pairs of an anchor are the same in a strip as in the whole batch."""
    return miner is None or bool(getattr(miner, "by_anchor", False))


def mined_pairs(miner: Miner | None, batch: Batch) -> Mined:
    """What a miner takes, or all ordered pairs, each once, without one."""
    if miner is None:
        return Mined(batch.positive, batch.negative)
    mined = miner.mine(batch)
    shape = tuple(batch.similarity.shape)
    if shapes(mined) != f"{shape}, {shape}":
        raise ValueError(
            f"{type(miner).__name__}.mine must return Mined(positive, negative), two matrices of "
            f"counts of shape {shape}; got {shapes(mined)}"
        )
    of_sign = Mined(batch.positive, batch.negative)
    for name in Mined._fields:
        count, possible = getattr(mined, name), getattr(of_sign, name)
        if not bool(torch.where(possible, count >= 0, count == 0).all()):
            raise ValueError(
                f"{type(miner).__name__}.mine must count {name} pairs in its matrix {name}, each 0 "
                "or more times, and no others; got other entries"
            )
    return Mined(*(part.to(batch.similarity) for part in mined))


def draw_counts(weight: Tensor, draws: Tensor, generator: torch.Generator | None) -> Tensor:
    """How often each entry is drawn, row by row; a row without weight draws none."""
    draws = torch.where(weight.sum(1) > 0, draws, 0)
    row, column = draw(weight, draws, generator)
    drawn = torch.bincount(row * weight.shape[1] + column, minlength=weight.numel())
    return counts(drawn.reshape(weight.shape))


def check_miner(miner: object, *, optional: bool) -> None:
    """A miner, not its class or its name, or a `ValueError`."""
    if miner is None and optional:
        return
    if isinstance(miner, type) or not isinstance(miner, Miner):
        raise ValueError(
            f"miner must be an object with a method mine, such as SemiHard(); got {miner!r}"
        )
