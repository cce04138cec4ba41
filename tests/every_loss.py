"""Every loss of the public surface, in every form and by a name."""

from __future__ import annotations

import math

import torch

import drometric as dm

# Thresholds apart from the similarities 0, 1/2 and 1 of the degenerate batches: no pair then
# stands on a kink, and positive and negative pairs have different losses.
PAIR_LOSSES = {
    "margin": dm.Margin(margin=0.2, threshold=0.4),
    "binomial": dm.Binomial(threshold=0.4),
    "contrastive": dm.Contrastive(threshold=0.25),
}

SETS = {
    "uniform": lambda rows: dm.Uniform(),
    "simplex": lambda rows: dm.Simplex(),
    "top-8": lambda rows: dm.TopK(k=8),
    "top-2B": lambda rows: dm.TopK(per_example=2.0),
    "balanced-top-1": lambda rows: dm.BalancedTopK(k=1),
    "balanced-top-8": lambda rows: dm.BalancedTopK(k=8),
    "balanced-top-2B": lambda rows: dm.BalancedTopK(per_example=2.0),
    "kl": lambda rows: dm.KL(0.1),
    "kl-0": lambda rows: dm.KL(0.0),
    "kl-inf": lambda rows: dm.KL(math.inf),
    "kl-sampled": lambda rows: dm.KL(0.1, sample=8, generator=_seeded()),
    "balanced-kl": lambda rows: dm.BalancedKL(0.1, 0.3),
    "balanced-kl-0-inf": lambda rows: dm.BalancedKL(0.0, math.inf),
    "anchor-kl": lambda rows: dm.PerAnchorKL(0.1, 0.3),
    "anchor-kl-0": lambda rows: dm.PerAnchorKL(0.0, 0.0),
    "anchor-kl-inf": lambda rows: dm.PerAnchorKL(math.inf, math.inf),
    "anchor-kl-sum": lambda rows: dm.PerAnchorKL(0.1, 0.3, reduction="sum"),
    "anchor-kl-slack": lambda rows: dm.PerAnchorKL(0.5, 0.02, slack=True),
    "anchor-kl-slack-0-inf": lambda rows: dm.PerAnchorKL(0.0, math.inf, slack=True),
    "anchor-kl-slack-each": lambda rows: dm.PerAnchorKL(
        torch.linspace(0.1, 0.9, rows), torch.linspace(0.0, 0.4, rows), slack=True
    ),
    "chi-square-small": lambda rows: dm.ChiSquare(0.1),
    "chi-square-large": lambda rows: dm.ChiSquare(1e6),
}

MINERS = {
    "semi-hard": lambda: dm.SemiHard(threshold=0.6),
    "semi-hard-drawn": lambda: dm.SemiHard(threshold=0.6, per_positive=2, generator=_seeded()),
    "distance": lambda: dm.DistanceWeighted(generator=_seeded()),
    "ms-mining": lambda: dm.MultiSimilarityMiner(),
    "threshold": lambda: dm.ThresholdMiner(),
}

BASELINES = {
    "lifted": lambda **o: dm.LiftedStructure(**o),
    "lifted-sum": lambda **o: dm.LiftedStructure(reduction="sum", **o),
    "ms": lambda **o: dm.MultiSimilarity(**o),
    "ms-sum": lambda **o: dm.MultiSimilarity(reduction="sum", **o),
    "hap2s-exponential": lambda **o: dm.HAP2S(**o),
    "hap2s-polynomial": lambda **o: dm.HAP2S(weighting="polynomial", reduction="sum", **o),
    "n-pair": lambda **o: dm.NPair(**o),
    "triplet-all": lambda **o: dm.Triplet(**o),
    "triplet-hard": lambda **o: dm.Triplet(triplets="hard", **o),
    "triplet-semi-hard": lambda **o: dm.Triplet(triplets="semi-hard", **o),
    "triplet-hardest": lambda **o: dm.Triplet(triplets="hardest", **o),
}


def _seeded():
    return torch.Generator().manual_seed(5)


def _robust(pair_loss, uncertainty, zero_loss):
    return lambda rows, **o: dm.RobustPairLoss(
        PAIR_LOSSES[pair_loss], SETS[uncertainty](rows), zero_loss=zero_loss, **o
    )


def _baseline(name):
    return lambda rows, **o: BASELINES[name](**o)


def _with_miner(name, miner):
    def build(rows, **options):
        if name == "lifted":
            return dm.LiftedStructure(miner=MINERS[miner](), **options)
        if name == "ms":
            return dm.MultiSimilarity(miner=MINERS[miner](), **options)
        return dm.MinedPairLoss(PAIR_LOSSES[name], MINERS[miner](), **options)

    return build


# A family is one set with every pair loss, zero losses kept and dropped, or one baseline. A loss in
# it is a function of the number of rows (γ may have one entry per anchor) and of options.
FAMILIES = {
    **{
        uncertainty: {
            f"{pair_loss}, {zero_loss}": _robust(pair_loss, uncertainty, zero_loss)
            for pair_loss in PAIR_LOSSES
            for zero_loss in ("keep", "drop")
        }
        for uncertainty in SETS
    },
    **{name: {"": _baseline(name)} for name in BASELINES},
    **{
        f"{name}+{miner}": {"": _with_miner(name, miner)}
        for name in ("lifted", "ms", *PAIR_LOSSES)
        for miner in MINERS
    },
}


def one_of(family, rows=6, **options):
    """The first of a family: for tests to which neither pair loss nor zero losses matter."""
    return next(iter(FAMILIES[family].values()))(rows, **options)
