"""What a loss is called with, checked: every complaint names the argument and what it should be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from drometric.engine.matrices import LAYOUTS, Matrix, read_matrix

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of one call. Making one checks them."""

    embeddings: Tensor
    labels: Tensor | None = None
    similar: Tensor | None = None
    ignore: Tensor | None = None
    reference: Tensor | None = None
    reference_labels: Tensor | None = None

    def __post_init__(self) -> None:
        _check_embeddings("embeddings", self.embeddings)
        _check_values("embeddings", self.embeddings)
        if self.reference is not None:
            self._check_reference(self.reference)
        if self.reference is None and self.reference_labels is not None:
            raise ValueError("reference_labels were given without a reference")
        if (self.labels is None) == (self.similar is None):
            raise ValueError(
                "give either labels or similar=, to say which pairs are similar; got "
                + ("neither" if self.labels is None else "both")
            )
        if self.labels is not None:
            self._check_labels(self.labels)
        elif self.reference_labels is not None:
            raise ValueError("reference_labels go with labels, not with similar=")
        self._check_matrix("similar", self.similar)
        self._check_matrix("ignore", self.ignore)
        if self.reference is None:
            _check_symmetry("similar", self.similar_matrix)
            _check_symmetry("ignore", self.ignore_matrix)

    @property
    def columns(self) -> Tensor:
        """The second set: the reference, or the batch itself."""
        return self.embeddings if self.reference is None else self.reference

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of values: float64 if an input is, else float32."""
        double = torch.float64 in (self.embeddings.dtype, self.columns.dtype)
        return torch.float64 if double else torch.float32

    @cached_property
    def similar_matrix(self) -> Matrix | None:
        """`similar`, ready to be read block by block."""
        return None if self.similar is None else read_matrix(self.similar)

    @cached_property
    def ignore_matrix(self) -> Matrix | None:
        """`ignore`, likewise."""
        return None if self.ignore is None else read_matrix(self.ignore)

    def _check_reference(self, reference: Tensor) -> None:
        _check_embeddings("reference", reference)
        if reference.shape[1] != self.embeddings.shape[1]:
            raise ValueError(
                f"reference must have as many columns as embeddings, {self.embeddings.shape[1]}; "
                f"got {_what(reference)}"
            )
        self._check_device("reference", reference)
        _check_values("reference", reference)
        if self.labels is not None and self.reference_labels is None:
            raise ValueError("labels with a reference need reference_labels, one per row of it")

    def _check_labels(self, labels: Tensor) -> None:
        self._check_label_set("labels", labels, "embeddings", len(self.embeddings))
        others = self.reference_labels
        if others is None:
            return
        self._check_label_set("reference_labels", others, "reference", len(self.columns))
        if labels.dim() != others.dim() or labels.shape[1:] != others.shape[1:]:
            raise ValueError(
                "labels and reference_labels must be of one kind, two integer vectors or two "
                f"boolean matrices with the same columns; got {_what(labels)} and {_what(others)}"
            )

    def _check_label_set(self, name: str, labels: object, of: str, length: int) -> None:
        if (
            not isinstance(labels, Tensor)
            or labels.layout != torch.strided
            or not _is_label_kind(labels)
            or len(labels) != length
        ):
            raise ValueError(
                f"{name} must be an integer vector of length {length}, one label per row of {of}, "
                f"or a boolean {length} x C matrix; got {_what(labels)}"
            )
        self._check_device(name, labels)

    def _check_matrix(self, name: str, matrix: object) -> None:
        if matrix is None:
            return
        wanted = (len(self.embeddings), len(self.columns))
        if (
            not isinstance(matrix, Tensor)
            or matrix.dtype != torch.bool
            or matrix.shape != wanted
            or matrix.layout not in LAYOUTS
            or (matrix.layout == torch.sparse_coo and matrix.dense_dim() > 0)
        ):
            array = isinstance(matrix, np.ndarray)
            raise ValueError(
                f"{name} must be a boolean matrix of shape {wanted}, a tensor that is dense or "
                f"sparse (COO or CSR); got {_what(matrix)}"
                + (" (torch.from_numpy or torch.from_file makes it a tensor)" if array else "")
            )
        if matrix.device.type != "cpu":
            self._check_device(name, matrix)

    def _check_device(self, name: str, tensor: Tensor) -> None:
        if tensor.device != self.embeddings.device:
            raise ValueError(
                f"{name} must be on the device of embeddings, {self.embeddings.device}; "
                f"got {_what(tensor)}"
            )


def _check_symmetry(name: str, matrix: Matrix | None) -> None:
    uneven = None if matrix is None else matrix.uneven()
    if uneven is not None:
        i, j = uneven
        raise ValueError(
            f"{name} must be symmetric within a batch; entries ({i}, {j}) and ({j}, {i}) differ"
        )


def _check_embeddings(name: str, x: object) -> None:
    if (
        not isinstance(x, Tensor)
        or x.dtype not in DTYPES
        or x.dim() != 2
        or x.layout != torch.strided
    ):
        raise ValueError(
            f"{name} must be a dense matrix of float16, bfloat16, float32 or float64, one example "
            f"a row; got {_what(x)}"
        )
    if x.shape[1] == 0:
        raise ValueError(f"{name} must have at least one column; got {_what(x)}")


def _check_values(name: str, x: Tensor) -> None:
    if x.is_meta:
        raise ValueError(f"{name} must hold data; got {_what(x)}")
    if not x.numel() or bool(torch.stack(x.detach().aminmax()).isfinite().all()):
        return
    bad = (~x.detach().isfinite()).any(1).nonzero()
    raise ValueError(
        f"{name} must be finite; {len(bad)} of {len(x)} rows contain NaN or infinity, "
        f"the first is row {int(bad[0])}"
    )


def _is_label_kind(labels: Tensor) -> bool:
    """An integer vector, or a boolean matrix."""
    if labels.dim() == 2:
        return labels.dtype == torch.bool
    fractional = labels.dtype.is_floating_point or labels.dtype.is_complex
    return labels.dim() == 1 and not fractional and labels.dtype != torch.bool


def _what(value: object) -> str:
    """A tensor or another object, in words, for an error."""
    if not isinstance(value, Tensor):
        return f"{type(value).__name__} {value!r}" if value is None else type(value).__name__
    dtype = str(value.dtype).removeprefix("torch.")
    if value.layout != torch.strided:
        dtype = f"{str(value.layout).removeprefix('torch.')} {dtype}"
    article = "an" if dtype.startswith("int") else "a"
    return f"{article} {dtype} tensor of shape {tuple(value.shape)} on {value.device}"
