"""What is measured: each loss, in every implementation, and the data that it runs on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import peer_losses
import plain_losses
from inputs import Data
from torch import Tensor

from drometric import (
    KL,
    BalancedKL,
    BalancedTopK,
    ChiSquare,
    LiftedStructure,
    Margin,
    MultiSimilarity,
    PerAnchorKL,
    RobustPairLoss,
    Simplex,
    TopK,
    Uniform,
)
from drometric.uncertainty import UncertaintySet

MATMUL = "X @ X.T"
"""The unit: one bare product of the embeddings with themselves, no gradient."""
IMPLEMENTATIONS = ("drometric", "plain", "peer")

Loss = Callable[[Tensor, Tensor], Tensor]
DEFAULT, WIDE = 0.2, 2.0  # margins; in the wide one the hinges of all pairs are active
GAMMA, RHO = 0.1, 1.0  # so small a ρ that every pair keeps a weight


@dataclass(frozen=True)
class Case:
    """One loss on one kind of data. Each implementation is made for a batch size."""

    loss: str
    data: Data
    drometric: Callable[[int], Loss]
    plain: Callable[[int], Loss]
    peer: Callable[[int], Loss] | None = None
    drawn: bool = False
    """True where pairs are drawn: no two calls agree."""

    @property
    def name(self) -> str:
        return f"{self.loss} {self.data}"

    def has(self, implementation: str) -> bool:
        """Whether there is such a loss, and what it needs is installed."""
        return implementation != "peer" or (self.peer is not None and peer_is_installed())

    def step(self, implementation: str, x: Tensor, labels: Tensor) -> "Step":
        """What is measured, ready to be run."""
        if implementation == MATMUL:
            return Step(_matmul, x, labels)
        return Step(getattr(self, implementation)(len(x)), x, labels)


@dataclass(frozen=True)
class Step:
    """One forward and backward pass."""

    loss: Loss
    x: Tensor
    labels: Tensor

    def run(self) -> Tensor:
        """The value; the gradient is left in `x.grad`."""
        value = self.loss(self.x, self.labels)
        if value.requires_grad:
            value.backward()
        return value.detach()


def peer_is_installed() -> bool:
    return find_spec("pytorch_metric_learning") is not None


def _matmul(x: Tensor, labels: Tensor) -> Tensor:
    return x.detach() @ x.detach().T


def _robust(uncertainty: UncertaintySet, margin: float = DEFAULT) -> Loss:
    return RobustPairLoss(Margin(margin=margin, threshold=0.5), uncertainty)


def _top_k(data: Data) -> Case:
    return Case(
        "TopK",
        data,
        lambda batch: _robust(TopK(per_example=2.0)),
        lambda batch: partial(plain_losses.top_k, margin=DEFAULT, k=2 * batch),
    )


def _all_weighing(data: Data, margin: float, suffix: str) -> list[Case]:
    """The sets that give a weight to every pair."""
    soft = {"margin": margin, "gamma": GAMMA}
    return [
        Case(
            f"KL{suffix}",
            data,
            lambda batch: _robust(KL(GAMMA), margin),
            lambda batch: partial(plain_losses.kl, **soft),
        ),
        Case(
            f"BalancedKL{suffix}",
            data,
            lambda batch: _robust(BalancedKL(GAMMA, GAMMA), margin),
            lambda batch: partial(plain_losses.balanced_kl, **soft),
        ),
        Case(
            f"PerAnchorKL{suffix}",
            data,
            lambda batch: _robust(PerAnchorKL(GAMMA, GAMMA), margin),
            lambda batch: partial(plain_losses.per_anchor_kl, **soft),
        ),
        Case(
            f"ChiSquare{suffix}",
            data,
            lambda batch: _robust(ChiSquare(RHO), margin),
            lambda batch: partial(plain_losses.chi_square, margin=margin, rho=RHO),
        ),
    ]


def _multi_similarity(data: Data) -> Case:
    return Case(
        "MultiSimilarity",
        data,
        lambda batch: MultiSimilarity(),
        lambda batch: plain_losses.multi_similarity,
        lambda batch: peer_losses.multi_similarity(),
    )


CASES = [
    _top_k("random"),
    _top_k("alike"),
    Case(
        "BalancedTopK",
        "random",
        lambda batch: _robust(BalancedTopK(per_example=2.0)),
        lambda batch: partial(plain_losses.balanced_top_k, margin=DEFAULT, k=2 * batch),
    ),
    Case(
        "Simplex",
        "random",
        lambda batch: _robust(Simplex()),
        lambda batch: partial(plain_losses.simplex, margin=DEFAULT),
    ),
    Case(
        "KL(sample=2B)",
        "random",
        lambda batch: _robust(KL(GAMMA, sample=2 * batch)),
        lambda batch: partial(
            plain_losses.kl_sample, margin=DEFAULT, gamma=GAMMA, sample=2 * batch
        ),
        drawn=True,
    ),
    Case(
        "Uniform wide",
        "random",
        lambda batch: _robust(Uniform(), WIDE),
        lambda batch: partial(plain_losses.uniform, margin=WIDE),
        lambda batch: peer_losses.uniform(margin=WIDE, threshold=0.5),
    ),
    *_all_weighing("random", WIDE, " wide"),
    _multi_similarity("random"),
    Case(
        "LiftedStructure",
        "random",
        lambda batch: LiftedStructure(),
        lambda batch: plain_losses.lifted_structure,
        lambda batch: peer_losses.lifted_structure(),
    ),
    _top_k("trained"),
    *_all_weighing("trained", DEFAULT, ""),
    _multi_similarity("trained"),
]
