"""Threshold mining: only pairs on the wrong side of the margin loss's band."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from drometric.checks import number
from drometric.engine.batch import Batch
from drometric.mining.mined import Mined, counts


@dataclass(frozen=True)
class ThresholdMiner:
    """Positives with `s < λ + m`, negatives with `s > λ - m`: the pairs with a margin loss above 0.

    What dropping zero losses does for a robust loss, for losses that have no pair losses.

    Args:
        margin: m.
        threshold: λ.
    """

    by_anchor: ClassVar[bool] = True

    margin: float = 0.2
    threshold: float = 0.5

    def __post_init__(self) -> None:
        number("margin", self.margin)
        number("threshold", self.threshold)

    def mine(self, batch: Batch) -> Mined:
        s = batch.similarity
        return Mined(
            counts(batch.positive & (s < self.threshold + self.margin)),
            counts(batch.negative & (s > self.threshold - self.margin)),
        )
