"""drometric: deep metric learning with distributionally robust pair losses."""

# One line a room, so that the whole surface is seen at once.
# fmt: off
# isort: off
from drometric.pair_losses import Binomial, Contrastive, Margin
from drometric.uncertainty import KL, BalancedKL, BalancedTopK, ChiSquare
from drometric.uncertainty import PerAnchorKL, Simplex, TopK, Uniform
from drometric.mining import DistanceWeighted, MultiSimilarityMiner, SemiHard, ThresholdMiner
from drometric.baselines import HAP2S, LiftedStructure, MinedPairLoss, MultiSimilarity
from drometric.baselines import NPair, Triplet
from drometric.robust_loss import RobustPairLoss

__all__ = [
    "RobustPairLoss",
    "Binomial", "Contrastive", "Margin",
    "KL", "BalancedKL", "BalancedTopK", "ChiSquare", "PerAnchorKL", "Simplex", "TopK", "Uniform",
    "HAP2S", "LiftedStructure", "MinedPairLoss", "MultiSimilarity", "NPair", "Triplet",
    "DistanceWeighted", "MultiSimilarityMiner", "SemiHard", "ThresholdMiner",
]
