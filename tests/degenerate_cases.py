"""The degenerate batches that have a value, by name, and what a loss must give in each.

The calls that must be refused stand in `degenerate_errors`.

`docs/degenerate.md` is the same list for readers; a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from equal_similarities import Alike

SAME = torch.tensor([0, 0, 1, 1, 1])


@dataclass(frozen=True)
class Case:
    """One call, and what is expected of it."""

    call: dict
    alike: Alike | None = None  # the value is that of these equal similarities
    error: str | None = None  # or there is a ValueError that reads like this
    gradient: str = "finite"  # "zero"; "slope": as the value says; "clamped": its sign
    scale: float = 1.0  # of a frame: its gradient is as much smaller
    options: tuple[tuple[str, object], ...] = ()  # of the loss


def frame(rows, dtype, scale=1.0):
    """Vectors e_0 + e_i, times a scale: any two have the similarity 1/2 to the last bit."""
    directions = torch.cat([torch.ones(rows, 1), torch.eye(rows)], dim=1).double()
    return (directions * scale).to(dtype)


def counted(labels, similarity, **more):
    """The `Alike` of a batch with these labels, all its pairs of one similarity."""
    positives = tuple(int((labels == own).sum()) - 1 for own in labels)
    return Alike(similarity, positives, tuple(len(labels) - 1 - p for p in positives), **more)


def of_labels(labels, scale=1.0):
    """A frame with these labels."""

    def make(dtype):
        call = {"embeddings": frame(len(labels), dtype, scale), "labels": labels}
        if not math.isfinite(float(call["embeddings"][0, 0])):
            return Case(call, error="embeddings must be finite; 5 of 5 rows contain .* is row 0")
        if call["embeddings"][0, 0] == 0:  # 1e-30 in float16
            return Case(call, counted(labels, 0.0, distance=0.0), gradient="zero")
        # The scale as the dtype rounds it: what the gradient goes by.
        scale_there = float(call["embeddings"][0, 0])
        return Case(call, counted(labels, 0.5), gradient="slope", scale=scale_there)

    return make


def no_pair(rows, labels, **more):
    """A call in which no pair is left."""
    nothing = (0,) * rows
    return lambda dtype: Case(
        {"embeddings": frame(rows, dtype), "labels": labels, **more},
        Alike(0.5, nothing, nothing),
        gradient="zero",
    )


def ignored_negatives(dtype):
    call = {"embeddings": frame(5, dtype), "labels": SAME, "ignore": SAME[:, None] != SAME}
    return Case(call, Alike(0.5, (1, 1, 2, 2, 2), (0,) * 5), gradient="slope")


def empty_reference(dtype):
    call = {"embeddings": frame(5, dtype), "labels": SAME}
    call |= {"reference": frame(5, dtype)[:0], "reference_labels": SAME[:0]}
    return Case(call, Alike(0.5, (0,) * 5, (0,) * 5, within=False), gradient="zero")


def zero_reference(dtype):
    call = {"embeddings": frame(5, dtype), "labels": SAME}
    call |= {"reference": torch.zeros(2, 6, dtype=dtype), "reference_labels": torch.arange(2)}
    pairs = Alike(0.0, (1,) * 5, (1,) * 5, within=False, distance=1.0)
    return Case(call, pairs, gradient="zero")


def double_reference(dtype):
    # frame(7) without its first five rows: as similar to those as they are to each other.
    other = torch.float32 if dtype == torch.float64 else torch.float64
    call = {"embeddings": frame(7, dtype)[:5], "labels": SAME}
    call |= {"reference": frame(7, other)[5:], "reference_labels": torch.arange(2)}
    return Case(call, Alike(0.5, (1,) * 5, (1,) * 5, within=False))


def unlabelled_example(dtype):
    labels = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 0]]).bool()
    call = {"embeddings": frame(4, dtype), "labels": labels}
    return Case(call, Alike(0.5, (1, 2, 1, 0), (2, 1, 2, 3)), gradient="slope")


def identical(dtype):
    labels = torch.arange(6) // 2
    call = {"embeddings": torch.full((6, 4), 0.5, dtype=dtype), "labels": labels}
    return Case(call, counted(labels, 1.0), gradient="zero")


def all_zero(dtype):
    call = {"embeddings": torch.zeros(5, 4, dtype=dtype), "labels": SAME}
    return Case(call, counted(SAME, 0.0, distance=0.0), gradient="zero")


def one_zero(dtype):
    x = frame(5, dtype)
    x[3] = 0
    return Case({"embeddings": x, "labels": SAME})


def one_column(dtype):
    x = torch.tensor([[1.0], [-2.0], [3.0], [0.5], [-1.0]]).to(dtype)
    return Case({"embeddings": x, "labels": SAME}, gradient="zero")


def tiniest(dtype):
    limits = torch.finfo(dtype)
    x, labels = frame(5, dtype, limits.smallest_normal * limits.eps), torch.zeros(5).long()
    return Case({"embeddings": x, "labels": labels}, counted(labels, 0.5), gradient="clamped")


def plain(scale):
    """A frame that is not normalised: similarities of scale²."""

    def make(dtype):
        x, error = frame(5, dtype, scale), None
        if not x.isfinite().all():
            error = r"embeddings must be finite; 5 of 5 rows contain .* the first is row 0"
        elif scale > 1e154:  # whose square float64 cannot hold
            error = r"embeddings are too large for normalize=False: their similarities overflow"
        call = {"embeddings": x, "labels": SAME}
        return Case(call, error=error, gradient="overflow", options=(("normalize", False),))

    return make


VALUES: dict[str, Callable[[torch.dtype], Case]] = {
    "no positives": of_labels(torch.arange(5)),
    "no negatives": ignored_negatives,
    "one class": of_labels(torch.zeros(5, dtype=torch.int64)),
    "one example": no_pair(1, SAME[:1]),
    "two examples of one class": of_labels(torch.tensor([3, 3])),
    "two examples of two classes": of_labels(torch.tensor([3, 4])),
    "an empty batch": no_pair(0, SAME[:0]),
    "every pair ignored": no_pair(5, SAME, ignore=torch.ones(5, 5).bool()),
    "identical vectors": identical,
    "zero vectors": all_zero,
    "one zero vector": one_zero,
    "K beyond the pairs there are": of_labels(torch.tensor([0, 0, 1])),
    "d = 1": one_column,
    "scale 1e30": of_labels(SAME, 1e30),
    "scale 1e-30": of_labels(SAME, 1e-30),
    "the smallest numbers": tiniest,
    "37 of 40 in one class": of_labels(torch.tensor([0] * 37 + [1, 1, 2])),
    "an example without any label": unlabelled_example,
    "an empty reference": empty_reference,
    "a reference of zero vectors": zero_reference,
    "a reference of another dtype": double_reference,
    "1e30, not normalised": plain(1e30),
}
