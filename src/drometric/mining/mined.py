"""What miners give: ordered pairs, counted."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from drometric.engine.batch import Batch


class Mined(NamedTuple):
    """How often each ordered pair is taken: two (B, R) float64 matrices, one row an anchor."""

    positive: Tensor
    negative: Tensor


@runtime_checkable
class Miner(Protocol):
    """Anything that chooses ordered pairs from a batch."""

    def mine(self, batch: Batch) -> Mined:
        """The pairs to look at."""
        ...


def counts(mask: Tensor) -> Tensor:
    """Each pair of the mask, once."""
    return mask.to(torch.float64)


def mine(miner: Miner | None, batch: Batch) -> Mined:
    """What a miner takes, or all ordered pairs, each once, without one."""
    if miner is None:
        return Mined(counts(batch.positive), counts(batch.negative))
    mined = miner.mine(batch)
    wanted = batch.similarity.shape
    shapes = [tuple(part.shape) for part in mined] if isinstance(mined, Mined) else mined
    if shapes != [tuple(wanted)] * 2:
        raise ValueError(
            f"{type(miner).__name__}.mine must return Mined(positive, negative), two matrices of "
            f"counts of shape {tuple(wanted)}; got {shapes!r}"
        )
    return Mined(*(part.to(batch.similarity) for part in mined))


def check_miner(miner: object, *, optional: bool) -> None:
    """A miner, not its class or its name, or a `ValueError`."""
    if miner is None and optional:
        return
    if isinstance(miner, type) or not isinstance(miner, Miner):
        raise ValueError(
            f"miner must be an object with a method mine, such as SemiHard(); got {miner!r}"
        )
