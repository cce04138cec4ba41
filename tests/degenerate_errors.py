"""The calls that must be refused, by name, and how the error reads.

`docs/degenerate.md` is the same list for readers; a test holds the two together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import torch
from degenerate_cases import SAME, Case, frame, plain


def wrong(error, **changes):
    """A call with arguments that must be refused, with an error that reads like this."""

    def make(dtype):
        call = {"embeddings": frame(5, dtype), "labels": SAME, **changes}
        made = {k: v(frame(5, dtype)) if callable(v) else v for k, v in call.items()}
        return Case({k: v for k, v in made.items() if v is not None}, error=f"(?s)^{error}$")

    return make


def put(value):
    return lambda x: x.index_put((torch.tensor([2]), torch.tensor([1])), x.new_tensor(value))


def refused(argument):
    """What the error says of a label set of the wrong kind."""
    of = "reference" if argument.startswith("reference") else "embeddings"
    return (
        rf"{argument} must be an integer vector of length 5, one label per row of {of}, "
        r"or a boolean 5 x C matrix; got "
    )


def tensor(dtype, *shape, device="cpu"):
    """How an error tells of a tensor."""
    listed = re.escape(str(tuple(shape)))
    return rf"an? {dtype} tensor of shape {listed} on {device}"


NOT_FINITE = r"must be finite; 1 of 5 rows contain NaN or infinity, the first is row 2"
NOT_A_MATRIX = (
    "must be a dense matrix of float16, bfloat16, float32 or float64, one example a row; got "
)
ANY = r"\w+"
SQUARE = (
    r"must be a boolean matrix of shape \(5, 5\), a tensor that is dense or sparse \(COO or CSR\); "
    "got "
)
UNEVEN = r"must be symmetric within a batch; entries \(0, 1\) and \(1, 0\) differ"
LABELLED = {"reference_labels": SAME}


def other_device(name):
    return rf"{name} must be on the device of embeddings, cpu; got .* on meta"


def to_meta(x):
    return x.to("meta")


ERRORS: dict[str, Callable[[torch.dtype], Case]] = {
    "NaN in the input": wrong(f"embeddings {NOT_FINITE}", embeddings=put(math.nan)),
    "infinity in the input": wrong(f"embeddings {NOT_FINITE}", embeddings=put(-math.inf)),
    "NaN in the reference": wrong(f"reference {NOT_FINITE}", reference=put(math.nan), **LABELLED),
    "1e200, not normalised": plain(1e200),
    "integer embeddings": wrong(
        f"embeddings {NOT_A_MATRIX}{tensor('int64', 5, 6)}", embeddings=torch.Tensor.long
    ),
    "embeddings of rank 1": wrong(
        f"embeddings {NOT_A_MATRIX}{tensor(ANY, 30)}", embeddings=torch.flatten
    ),
    "embeddings of rank 3": wrong(
        f"embeddings {NOT_A_MATRIX}{tensor(ANY, 1, 5, 6)}", embeddings=lambda x: x[None]
    ),
    "embeddings that are no tensor": wrong(
        f"embeddings {NOT_A_MATRIX}list", embeddings=torch.Tensor.tolist
    ),
    "sparse embeddings": wrong("embeddings must .*", embeddings=torch.Tensor.to_sparse),
    "8-bit embeddings": wrong(
        "embeddings must .*float8.*", embeddings=lambda x: x.to(torch.float8_e4m3fn)
    ),
    "embeddings without columns": wrong(
        f"embeddings must have at least one column; got {tensor(ANY, 5, 0)}",
        embeddings=lambda x: x[:, :0],
    ),
    "too few labels": wrong(refused("labels") + tensor("int64", 4), labels=SAME[:4]),
    "too many labels": wrong(refused("labels") + tensor("int64", 7), labels=torch.arange(7)),
    "labels on another device": wrong(other_device("labels"), labels=SAME.to("meta")),
    "floating-point labels": wrong(refused("labels") + tensor("float32", 5), labels=SAME.float()),
    "integer labels of rank 2": wrong(
        refused("labels") + tensor("int64", 5, 1), labels=SAME[:, None]
    ),
    "boolean labels of rank 1": wrong(refused("labels") + tensor("bool", 5), labels=SAME > 0),
    "labels in a list": wrong(refused("labels") + "list", labels=SAME.tolist()),
    "no labels": wrong(
        "give either labels or similar=, to say which pairs are similar; got neither", labels=None
    ),
    "labels and similar= at once": wrong(
        "give either labels or similar=, to say which pairs are similar; got both",
        similar=torch.eye(5).bool(),
    ),
    "similar= not symmetric": wrong(
        f"similar {UNEVEN}", labels=None, similar=torch.ones(5, 5).triu().bool()
    ),
    "similar= of another shape": wrong(
        f"similar {SQUARE}{tensor('bool', 4, 4)}", labels=None, similar=torch.eye(4).bool()
    ),
    "similar= not boolean": wrong(
        f"similar {SQUARE}{tensor('float32', 5, 5)}", labels=None, similar=torch.eye(5)
    ),
    "similar= on another device": wrong(
        other_device("similar"), labels=None, similar=torch.eye(5).bool().to("meta")
    ),
    "ignore= not symmetric": wrong(f"ignore {UNEVEN}", ignore=torch.ones(5, 5).triu().bool()),
    "ignore= of another shape": wrong(
        f"ignore {SQUARE}{tensor('bool', 5)}", ignore=torch.ones(5).bool()
    ),
    "ignore= not boolean": wrong(
        f"ignore {SQUARE}{tensor('int64', 5, 5)}", ignore=torch.eye(5).long()
    ),
    "a reference of another width": wrong(
        f"reference must have as many columns as embeddings, 6; got {tensor(ANY, 5, 4)}",
        reference=lambda x: x[:, :4],
        **LABELLED,
    ),
    "an integer reference": wrong(
        f"reference {NOT_A_MATRIX}{tensor('int64', 5, 6)}",
        reference=torch.Tensor.long,
        **LABELLED,
    ),
    "a reference on another device": wrong(
        other_device("reference"), reference=to_meta, reference_labels=SAME.to("meta")
    ),
    "a reference without labels": wrong(
        "labels with a reference need reference_labels, one per row of it", reference=torch.clone
    ),
    "reference_labels without a reference": wrong(
        "reference_labels were given without a reference", **LABELLED
    ),
    "too few reference_labels": wrong(
        refused("reference_labels") + tensor("int64", 3),
        reference=torch.clone,
        reference_labels=SAME[:3],
    ),
    "labels of two kinds": wrong(
        "labels and reference_labels must be of one kind, two integer vectors or two boolean "
        "matrices with the same columns; got "
        f"{tensor('int64', 5)} and {tensor('bool', 5, 3)}",
        reference=torch.clone,
        reference_labels=torch.ones(5, 3).bool(),
    ),
    "reference_labels with similar=": wrong(
        "reference_labels go with labels, not with similar=",
        labels=None,
        similar=torch.eye(5).bool(),
        reference=torch.clone,
        **LABELLED,
    ),
}
