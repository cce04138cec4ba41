"""The framework: a pair loss, and the set of weightings that it is to be robust to."""

from __future__ import annotations

from typing import Literal

from drometric.checks import one_of
from drometric.engine import reference
from drometric.engine.arguments import Arguments
from drometric.engine.batch import Batch
from drometric.engine.outcome import Outcome
from drometric.engine.pairwise_loss import PairWeights, PairwiseLoss
from drometric.engine.plan import choose
from drometric.engine.problem import Problem
from drometric.engine.robust import solve
from drometric.engine.solution import Solution
from drometric.engine.streamed import selected_weights
from drometric.pair_losses import PairLoss, check_pair_loss
from drometric.uncertainty.pairs import UncertaintySet, check_uncertainty


class RobustPairLoss(PairwiseLoss):
    """The distributionally robust loss over pairs, eq. (1): `F(θ) = max over p in U of Σ p l`.

    Every unordered pair of a batch is a binary classification: similar or not. `pair_loss` says
    what a pair costs, `uncertainty` which weightings p of the pairs are considered; the value is
    the worst of them (penalties of the set included), its gradient Σ p* ∇l (Lemma 1). Where p*
    is not unique, or a hinge is at its kink, that is one element of the lemma's set.

    Pairs that are ignored count in no mean and no n. A batch in which no pair is left has the
    value 0 and a gradient of zeros.

    Args:
        pair_loss: `Margin`, `Binomial`, `Contrastive`, or anything with their two methods.
        uncertainty: `TopK`, `KL`, … or anything with their one method.
        zero_loss: "drop" leaves out pairs whose loss is 0 before the set sees them, as the
            paper does (section 3.2); n, P_i and N_i then count the others only (the slack
            element of `PerAnchorKL` stays). The value jumps where a loss reaches 0. "keep"
            counts all pairs.
        normalize: L2-normalise the embeddings first. A zero vector has similarity 0 to all.

    >>> import torch
    >>> from drometric import Margin, RobustPairLoss, TopK
    >>> loss = RobustPairLoss(Margin(margin=0.2, threshold=0.5), TopK(k=2))
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], requires_grad=True)
    >>> value = loss(embeddings, torch.tensor([0, 0, 1]))   # losses .7 (positive), .3, .5
    >>> value
    tensor(0.6000, grad_fn=<_PairGradientBackward>)
    >>> value.backward()
    >>> loss.weights(embeddings, torch.tensor([0, 0, 1]))
    PairWeights(i=tensor([0, 1]), j=tensor([1, 2]), weight=tensor([0.5000, 0.5000]))
    """

    def __init__(
        self,
        pair_loss: PairLoss,
        uncertainty: UncertaintySet,
        *,
        zero_loss: Literal["keep", "drop"] = "keep",
        normalize: bool = True,
    ) -> None:
        super().__init__(normalize=normalize)
        check_pair_loss(pair_loss)
        check_uncertainty(uncertainty)
        self.pair_loss = pair_loss
        self.uncertainty = uncertainty
        self.zero_loss = one_of("zero_loss", zero_loss, ("keep", "drop"))

    def evaluate(self, arguments: Arguments, wanted: tuple[bool, bool]) -> Outcome:
        problem = self._problem(arguments)
        outcome = None
        if problem.plan.path != "plain" and problem.known:
            outcome = solve(problem, arguments, normalize=self.normalize)
        return outcome or super().evaluate(arguments, wanted)

    def find_weights(self, arguments: Arguments) -> PairWeights:
        problem = self._problem(arguments)
        if problem.plan.path != "tiles" or not (problem.known and problem.hard):
            return super().find_weights(arguments)
        return PairWeights(*selected_weights(problem, arguments, normalize=self.normalize))

    def solve(self, batch: Batch) -> Solution:
        return reference.solve(
            batch, self.pair_loss, self.uncertainty, drop_zero_loss=self.zero_loss == "drop"
        )

    def _problem(self, arguments: Arguments) -> Problem:
        rows, columns = arguments.embeddings, arguments.columns
        plan = choose(len(rows), len(columns), rows.device)
        return Problem(self.pair_loss, self.uncertainty, self.zero_loss == "drop", plan)
