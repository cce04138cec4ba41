"""Losses of pytorch-metric-learning, set up to give the value of one of drometric's.

The package is optional and takes a while to import, so each function imports what it needs.
"""

from collections.abc import Callable

from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def multi_similarity() -> Loss:
    from pytorch_metric_learning.losses import MultiSimilarityLoss

    return MultiSimilarityLoss(alpha=2.0, beta=50.0, base=0.5)


def lifted_structure() -> Loss:
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import GeneralizedLiftedStructureLoss

    return GeneralizedLiftedStructureLoss(
        pos_margin=1.0, neg_margin=0.0, distance=CosineSimilarity()
    )


def uniform(margin: float, threshold: float) -> Loss:
    """The sum over ordered pairs divided by their number: its own mean is one of each sign."""
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import ContrastiveLoss
    from pytorch_metric_learning.reducers import SumReducer

    total = ContrastiveLoss(
        pos_margin=threshold + margin,
        neg_margin=threshold - margin,
        distance=CosineSimilarity(),
        reducer=SumReducer(),
    )
    return lambda x, labels: total(x, labels) / (len(x) * (len(x) - 1))
