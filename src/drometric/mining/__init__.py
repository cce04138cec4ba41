"""Miners: which pairs of a batch a loss is to look at. One miner a file.

A miner is any object with a method `mine(batch)` that returns how often each ordered pair
(anchor, other) is taken.
"""

from drometric.mining.distance_weighted import DistanceWeighted
from drometric.mining.mined import Mined, Miner, mined_pairs
from drometric.mining.multi_similarity import MultiSimilarityMiner
from drometric.mining.semi_hard import SemiHard
from drometric.mining.threshold import ThresholdMiner

__all__ = [
    "DistanceWeighted",
    "Mined",
    "Miner",
    "MultiSimilarityMiner",
    "SemiHard",
    "ThresholdMiner",
    "mined_pairs",
]
