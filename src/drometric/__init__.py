"""drometric: deep metric learning with distributionally robust pair losses."""

# fmt: off
from drometric.baselines import (
    HAP2S,
    LiftedStructure,
    MinedPairLoss,
    MultiSimilarity,
    NPair,
    Triplet,
)
from drometric.mining import DistanceWeighted, MultiSimilarityMiner, SemiHard, ThresholdMiner
from drometric.pair_losses import Binomial, Contrastive, Margin
from drometric.robust_loss import RobustPairLoss
from drometric.uncertainty import (
    KL,
    BalancedKL,
    BalancedTopK,
    ChiSquare,
    PerAnchorKL,
    Simplex,
    TopK,
    Uniform,
)

__all__ = [
    "HAP2S",
    "KL",
    "BalancedKL",
    "BalancedTopK",
    "Binomial",
    "ChiSquare",
    "Contrastive",
    "DistanceWeighted",
    "LiftedStructure",
    "Margin",
    "MinedPairLoss",
    "MultiSimilarity",
    "MultiSimilarityMiner",
    "NPair",
    "PerAnchorKL",
    "RobustPairLoss",
    "SemiHard",
    "Simplex",
    "ThresholdMiner",
    "TopK",
    "Triplet",
    "Uniform",
]
