"""U = {the uniform weighting}: the average loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from drometric.uncertainty.pairs import Pairs, WorstCase


@dataclass(frozen=True)
class Uniform:
    """Every pair weighs the same: the average loss over all pairs (the paper's F_avg).

    What the framework is there to improve on: nearly all pairs are negative and easy.
    """

    def worst_case(self, pairs: Pairs) -> WorstCase:
        return WorstCase(pairs.loss.mean(), torch.full_like(pairs.loss, 1 / len(pairs)))
