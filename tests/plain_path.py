"""What the plain path finds in a call, and whether another path finds the same.

The plain path is the framework as the paper writes it, and is tested against the oracle.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drometric import RobustPairLoss
from drometric.engine.arguments import Arguments
from drometric.engine.batch import Batch, read_batch
from drometric.engine.outcome import Outcome
from drometric.engine.pairwise_loss import PairwiseLoss
from drometric.engine.plan import planned
from drometric.pair_losses import Hinge

SMALLEST_VALUE = 0.1
"""Smaller values are off by as much as this one: one unit of float32 in a similarity."""

SMALLEST_GRADIENT = 1e-30
"""Smaller ones are near where float32 has no digits left."""


def found_on(loss: PairwiseLoss, arguments: Arguments, **plan: Any) -> Outcome:
    """The value and both gradients of a loss, computed as the fields of a plan say."""
    with planned(**plan), torch.no_grad():
        return loss.evaluate(arguments, (True, arguments.reference is not None))


def assert_as_plain(
    loss: PairwiseLoss, arguments: Arguments, gamma: float | None = None, **plan: Any
) -> None:
    """A path gives what the plain one gives.

    A value to 1e-6 of its size. A gradient, the largest ‖Δg_i‖ ‖x_i‖ counting, to 1e-5 (times
    .01/γ where γ is smaller than .01, and times the largest similarity where rows are as they
    are) of the largest ‖g_i‖ ‖x_i‖, or of Σ w |l'| where gradients cancel. A pair that stands on
    the kink of its hinge, as far as float32 can tell, may have either slope.
    """
    expected = found_on(loss, arguments, path="plain")
    found = found_on(loss, arguments, **plan)
    value, wanted = float(found.value), float(expected.value)
    batch = plain_batch(loss, arguments)
    solution = loss.solve(batch)
    mass = float(solution.slope.abs().sum())
    furthest = float(batch.similarity.abs().max()) if batch.similarity.numel() else 0.0
    # A logarithm in float32 is off by a unit, of which γ times is the value's.
    softness = 4 * min(gamma or 0.0, 1.0)
    size = max(SMALLEST_VALUE, abs(wanted), mass * max(1.0, furthest), softness)
    assert abs(value - wanted) <= 1e-6 * size, f"value {value}, plain {wanted}, {mass=:.2e}"
    # A loss may be twice as steep as the similarity.
    sharpness = (0.01 if furthest <= 1.0 + 1e-9 else 0.02 * furthest) / gamma if gamma else 1.0
    tolerance = 1e-5 * max(1.0, sharpness)
    sides = [("gradient", arguments.embeddings, found.gradient, expected.gradient)]
    if arguments.reference is not None:
        of_reference = found.reference_gradient, expected.reference_gradient
        sides.append(("reference's", arguments.reference, *of_reference))
    for name, x, gradient, plain in sides:
        assert gradient is not None
        assert plain is not None
        assert bool(gradient.isfinite().all()), f"{name} is not finite"
        error, largest = lengths(gradient.double() - plain.double(), x), lengths(plain, x)
        bound = tolerance * max(largest, mass) + on_the_kink(loss, batch, solution.weight)
        bound = max(bound, SMALLEST_GRADIENT)
        assert error <= bound, f"{name} off by {error:.2e}, {largest=:.2e}, {mass=:.2e}"


def lengths(gradient: Tensor, x: Tensor) -> float:
    """The largest ‖g_i‖ ‖x_i‖, 0 if there is none."""
    sizes = [torch.linalg.vector_norm(t.detach().double(), dim=1) for t in (gradient, x)]
    product = sizes[0] * sizes[1]
    return float(product.amax()) if len(product) else 0.0


def on_the_kink(loss: PairwiseLoss, batch: Batch, weight: Tensor) -> float:
    """The weight of the pairs whose slope float32 cannot tell."""
    pair_loss = getattr(loss, "pair_loss", None)
    if not isinstance(pair_loss, Hinge):
        return 0.0
    fallen, risen = pair_loss.kinks
    kink = torch.where(batch.positive, fallen, risen).double()
    s = batch.similarity
    near = (s - kink).abs() < 2.0**-22 * s.abs().clamp(min=1)
    return float(weight[near].sum())


def plain_batch(loss: PairwiseLoss, arguments: Arguments) -> Batch:
    """All pairs, as the plain path compares them."""
    with torch.no_grad():
        return read_batch(arguments, normalize=loss.normalize)


def rounding_decides(loss: RobustPairLoss, arguments: Arguments) -> bool:
    """Whether float32 cannot tell if some pair's loss is 0, and that pair is then dropped or not.

    A hinge within rounding of its kink (rows of whole numbers, as in the exact batches, are not
    rounded), or a smooth loss that underflows.
    """
    if loss.zero_loss == "keep":
        return False
    x, batch = arguments.embeddings, plain_batch(loss, arguments)
    for positive, mask in ((True, batch.positive), (False, batch.negative)):
        s = batch.similarity[mask]
        if not isinstance(loss.pair_loss, Hinge):
            of_sign = loss.pair_loss.positive if positive else loss.pair_loss.negative
            near = of_sign(s)[0] < 1e-30
        elif torch.equal(x, x.round()):
            continue
        else:
            kink = loss.pair_loss.kinks[0 if positive else 1]
            near = (s - kink).abs() < 1e-5 * s.abs().clamp(min=1)
        if bool(near.any()):
            return True
    return False
