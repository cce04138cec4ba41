"""What all losses over pairs have in common: how they are called, and what they can tell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from drometric.checks import switch
from drometric.engine.arguments import Arguments
from drometric.engine.batch import Batch, read_batch
from drometric.engine.outcome import Outcome
from drometric.engine.precision import in_full_precision
from drometric.engine.solution import (
    Solution,
    checked_value,
    is_differentiated,
    outcome_of,
    with_gradient,
)


class PairWeights(NamedTuple):
    """Pairs and their weights, ordered by (i, j): three vectors of one length."""

    i: Tensor
    """Row of the embeddings."""
    j: Tensor
    """Row of the embeddings, i < j, or of the reference."""
    weight: Tensor
    """The pair's weight, above 0."""


class Touched(NamedTuple):
    """A loss with the examples that its gradient reaches."""

    value: Tensor
    """The loss, without a graph behind it."""
    rows: Tensor
    """The rows of the embeddings whose gradient is not zero, ascending."""
    gradient: Tensor
    """Their gradients, one a row, in the dtype of the embeddings."""


@dataclass(frozen=True)
class Report:
    """What a loss looked at. Pairs are unordered; ignored ones are not counted."""

    positive_pairs: int
    negative_pairs: int
    active_positive_pairs: int
    active_negative_pairs: int
    positive_weight: float
    negative_weight: float
    effective_pairs: float
    """(Σp)² / Σp²: how many pairs the weights amount to, 0 where there are none."""


class PairwiseLoss(nn.Module, ABC):
    """A loss over the pairs of a batch, or over pairs across two sets."""

    def __init__(self, *, normalize: bool = True) -> None:
        super().__init__()
        self.normalize = switch("normalize", normalize)

    @abstractmethod
    def solve(self, batch: Batch) -> Solution:
        """The value of the loss, its slope in every similarity, and the weight of every pair."""

    def evaluate(self, arguments: Arguments, wanted: tuple[bool, bool]) -> Outcome:
        """The value and the wanted gradients: of the embeddings and of the reference."""
        batch = read_batch(arguments, normalize=self.normalize)
        return outcome_of(self.solve(batch), batch, arguments.dtype, wanted)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        similar: Tensor | None = None,
        ignore: Tensor | None = None,
        reference: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss, a scalar: float64 for float64 embeddings, else float32.

        Args:
            embeddings: (B, d), float16, bfloat16, float32 or float64, one example a row. A zero
                vector is similar to nothing, and gets no gradient.
            labels: (B,) integers, or (B, C) booleans: examples are similar that share a label.
            similar: instead of labels, (B, B) booleans, symmetric; (B, R) with a reference. Dense
                or sparse (COO or CSR); a dense one may be mapped from a file (`torch.from_file`),
                since it is read block by block.
            ignore: pairs that count as neither positive nor negative, of the same kinds as
                `similar`. Within a batch the diagonals of both are not read.
            reference: (R, d), a second set: the pairs are then rows x reference only, and rows
                are the anchors. It gets a gradient if it wants one. Where it holds the batch
                itself, use `ignore` to leave out each example's pair with itself.
            reference_labels: the labels of the reference.
        """
        # torch.compile would break its graph at every choice that is made here: let it do so once.
        run = self._value
        if torch.compiler.is_compiling():
            run = _uncompiled(run)
        return run(embeddings, reference, (labels, similar, ignore, reference_labels))

    def _value(
        self,
        embeddings: Tensor,
        reference: Tensor | None,
        pairs: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    ) -> Tensor:
        wanted = is_differentiated(embeddings), is_differentiated(reference)

        def compute(*sources: Tensor) -> tuple[Tensor, ...]:
            # The sources as they are inside of torch.func's transforms; what isn't differentiated
            # stays what it is.
            left = list(sources)
            x = left.pop(0) if wanted[0] else embeddings
            y = left.pop(0) if wanted[1] else reference
            labels, similar, ignore, reference_labels = pairs
            arguments = Arguments(x, labels, similar, ignore, y, reference_labels)
            with torch.no_grad(), in_full_precision(x.device.type):
                outcome = self.evaluate(arguments, wanted)
            found = (outcome.gradient, outcome.reference_gradient)
            gradients = (g for g, w in zip(found, wanted, strict=True) if w and g is not None)
            return checked_value(outcome, arguments.dtype), *gradients

        sources = [x for x, w in zip((embeddings, reference), wanted, strict=True) if w]
        return (with_gradient(compute, *sources) if sources else compute())[0]

    if TYPE_CHECKING:  # nn.Module's own __call__ tells a type checker nothing
        __call__ = forward

    def touched(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        similar: Tensor | None = None,
        ignore: Tensor | None = None,
        reference: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> Touched:
        """The loss, and which rows have a gradient: only those need a backward pass.

        A loss that selects few pairs reaches few examples of a large batch. So embed the batch
        without a graph, then once more the examples that count, and go backward through these:

        >>> import torch
        >>> from drometric import Margin, RobustPairLoss, TopK
        >>> model, images = torch.nn.Linear(8, 4), torch.randn(100, 8)
        >>> labels, loss = torch.arange(100) // 5, RobustPairLoss(Margin(), TopK(k=10))
        >>> with torch.no_grad():
        ...     embeddings = model(images)
        >>> value, rows, gradient = loss.touched(embeddings, labels)
        >>> model(images[rows]).backward(gradient)   # of at most 20 examples

        That is the gradient of `loss(model(images), labels)` for a model that embeds each example
        by itself (no batch statistics, the same dropout).
        """
        arguments = Arguments(embeddings, labels, similar, ignore, reference, reference_labels)
        with torch.no_grad(), in_full_precision(embeddings.device.type):
            outcome = self.evaluate(arguments, (True, False))
            value = checked_value(outcome, arguments.dtype)
        assert outcome.gradient is not None
        rows = (outcome.gradient != 0).any(1).nonzero()[:, 0]
        return Touched(value, rows, outcome.gradient[rows].to(embeddings.dtype))

    def weights(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        similar: Tensor | None = None,
        ignore: Tensor | None = None,
        reference: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> PairWeights:
        """The pairs that have a weight, and their weights p*.

        A loss that is no robust loss has no p*: its weights are `|∂L/∂s|`. Where pairs are
        drawn, this call draws its own.
        """
        arguments = Arguments(embeddings, labels, similar, ignore, reference, reference_labels)
        with torch.no_grad(), in_full_precision(embeddings.device.type):
            return self.find_weights(arguments)

    def find_weights(self, arguments: Arguments) -> PairWeights:
        """The pairs that have a weight, ordered by (i, j)."""
        _, solution = self._read_and_solve(arguments)
        weight = solution.weight.to(arguments.dtype)
        i, j = (weight > 0).nonzero(as_tuple=True)
        return PairWeights(i, j, weight[i, j])

    def report(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        similar: Tensor | None = None,
        ignore: Tensor | None = None,
        reference: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> Report:
        """What the loss looks at in these examples.

        In a robust loss a pair is active where its loss is above 0, in any other loss where it
        has a weight. Where pairs are drawn, this call draws its own.
        """
        arguments = Arguments(embeddings, labels, similar, ignore, reference, reference_labels)
        batch, solution = self._read_and_solve(arguments)
        positive, negative = (mask & batch.unordered for mask in (batch.positive, batch.negative))
        weight = solution.weight
        relative = weight / weight.max() if bool(weight.any()) else weight
        squares = float(relative.square().sum())
        return Report(
            positive_pairs=int(positive.sum()),
            negative_pairs=int(negative.sum()),
            active_positive_pairs=int((positive & solution.active).sum()),
            active_negative_pairs=int((negative & solution.active).sum()),
            positive_weight=float(weight[positive].sum()),
            negative_weight=float(weight[negative].sum()),
            effective_pairs=float(relative.sum()) ** 2 / squares if squares else 0.0,
        )

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        names = [name for name in signature(type(self)).parameters if hasattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _read_and_solve(self, arguments: Arguments) -> tuple[Batch, Solution]:
        device = arguments.embeddings.device.type
        with torch.no_grad(), in_full_precision(device):
            batch = read_batch(arguments, normalize=self.normalize)
            return batch, self.solve(batch)


_uncompiled: Callable[..., Any] = torch.compiler.disable
