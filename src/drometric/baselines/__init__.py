"""What the framework recovers and is compared with. One loss a file, its equation on top."""

from drometric.baselines.hap2s import HAP2S
from drometric.baselines.lifted_structure import LiftedStructure
from drometric.baselines.mined_pair_loss import MinedPairLoss
from drometric.baselines.multi_similarity import MultiSimilarity
from drometric.baselines.n_pair import NPair
from drometric.baselines.triplet import Triplet

__all__ = ["HAP2S", "LiftedStructure", "MinedPairLoss", "MultiSimilarity", "NPair", "Triplet"]
