"""Which pairs are positive or negative, block by block, from every kind of labels and matrices."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import SITUATIONS, case
from torch import Tensor

from drometric import Margin, RobustPairLoss, Uniform
from drometric.engine import matrices, signs
from drometric.engine.arguments import Arguments
from drometric.engine.signs import read_signs

TILINGS = [(1, 1), (3, 5), (5, 2), (100, 4), (4, 100), (100, 100)]


def coo(matrix: Tensor) -> Tensor:
    return matrix.to_sparse()


def uncoalesced(matrix: Tensor) -> Tensor:
    """Every entry twice, once as False, in descending order; and some that are False only."""
    i, j = matrix.nonzero(as_tuple=True)
    no, other = (~matrix).nonzero(as_tuple=True)
    row, column = torch.cat((i, i, no[::2])).flip(0), torch.cat((j, j, other[::2])).flip(0)
    value = torch.cat((torch.ones(len(i)), torch.zeros(len(row) - len(i)))).bool().flip(0)
    return torch.sparse_coo_tensor(
        torch.stack((row, column)), value, matrix.shape, check_invariants=True
    )


def csr(matrix: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch's CSR tensors are in beta state
        return matrix.to_sparse_csr()


def csr_with_false(matrix: Tensor) -> Tensor:
    """All entries are there, some of them False."""
    full = csr(torch.ones_like(matrix))
    full.values().copy_(matrix.flatten())
    return full


def mapped(matrix: Tensor, folder: Path) -> Tensor:
    """The same in a file, read where it lies."""
    path = folder / "matrix"
    path.write_bytes(matrix.numpy().tobytes())
    size = matrix.numel()
    flat = torch.from_file(str(path), shared=False, size=size, dtype=torch.bool)
    return flat.reshape(matrix.shape)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda matrix: matrix,
    "transposed": lambda matrix: matrix.T.contiguous().T,
    "coo": coo,
    "uncoalesced": uncoalesced,
    "csr": csr,
    "csr with false entries": csr_with_false,
}


def assert_blocks(arguments: Arguments, positive: np.ndarray, negative: np.ndarray) -> None:
    """Blocks of any tiling are blocks of the two masks."""
    read = read_signs(arguments)
    rows, columns = positive.shape
    for height, width in TILINGS:
        for top in range(0, rows, height):
            for left in range(0, columns, width):
                block = slice(top, min(top + height, rows)), slice(left, min(left + width, columns))
                found = read.block(*block)
                for part, mask in zip(found, (positive, negative), strict=True):
                    assert part.dtype == torch.bool
                    np.testing.assert_array_equal(part.numpy(), mask[block])


@pytest.mark.parametrize("situation", SITUATIONS)
def test_blocks_of_any_tiling(situation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, n in enumerate((1, 2, 11, 16)):
        of = case("random", situation, seed, n)
        for at_once in (2**22, 9):
            monkeypatch.setattr(signs, "LABELS_AT_ONCE", at_once)
            _, positive, negative = of.matrices(torch.float64)
            assert_blocks(Arguments(**of.tensors(torch.float64)), positive, negative)


@pytest.mark.parametrize("form", [*FORMS, "mapped"])
@pytest.mark.parametrize("tile", [1, 3, 2048])
@pytest.mark.parametrize("situation", ["similar", "ignore", "reference, similar, ignore"])
def test_matrices_in_every_form(
    situation: str, tile: int, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "TILE", tile)
    for seed, n in enumerate((1, 7, 12)):
        of = case("random", situation, seed, n)
        given = of.tensors(torch.float64)
        for name in ("similar", "ignore"):
            if name in given and form == "mapped":
                (tmp_path / f"{n} {name}").mkdir()
                given[name] = mapped(given[name], tmp_path / f"{n} {name}")
            elif name in given:
                given[name] = FORMS[form](given[name])
        _, positive, negative = of.matrices(torch.float64)
        assert_blocks(Arguments(**given), positive, negative)


@pytest.mark.parametrize("form", FORMS)
def test_matrices_without_a_true_entry_or_without_any(form: str) -> None:
    for rows, columns in ((3, 4), (0, 0), (0, 2), (2, 0)):
        nothing = FORMS[form](torch.zeros(rows, columns).bool())
        arguments = Arguments(
            torch.ones(rows, 2), similar=nothing, ignore=nothing, reference=torch.ones(columns, 2)
        )
        everything = np.ones((rows, columns), dtype=bool)
        assert_blocks(arguments, ~everything, everything)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tile", [1, 4, 2048])
@pytest.mark.parametrize(("i", "j"), [(0, 1), (2, 9), (5, 6), (0, 9)])
def test_a_matrix_that_is_not_symmetric(
    i: int, j: int, tile: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "TILE", tile)
    even = torch.rand(10, 10, generator=torch.Generator().manual_seed(0)) < 0.3
    even = even | even.T
    x, labels = torch.ones(10, 2), torch.zeros(10, dtype=torch.int64)
    Arguments(x, similar=FORMS[form](even))
    for entry in ((i, j), (j, i)):
        uneven = even.clone()
        uneven[entry] ^= True
        uneven[3, 3] ^= True  # the diagonal is not read
        wanted = f"must be symmetric within a batch; entries ({i}, {j}) and ({j}, {i}) differ"
        with pytest.raises(ValueError, match=re.escape(f"similar {wanted}")):
            Arguments(x, similar=FORMS[form](uneven))
        with pytest.raises(ValueError, match=re.escape(f"ignore {wanted}")):
            Arguments(x, labels, ignore=FORMS[form](uneven))
        Arguments(x, similar=FORMS[form](uneven), reference=x)


@pytest.mark.parametrize(
    ("matrix", "got"),
    [
        (np.eye(5, dtype=bool), r"ndarray \(torch.from_numpy or torch.from_file makes it a tensor"),
        (torch.eye(5).to_sparse(), r"a sparse_coo float32 tensor of shape \(5, 5\) on cpu"),
        (torch.eye(4).bool().to_sparse(), r"a sparse_coo bool tensor of shape \(4, 4\) on cpu"),
        (torch.eye(5).bool().to_sparse(1), r"a sparse_coo bool tensor of shape \(5, 5\) on cpu"),
        (torch.eye(5).bool().tolist(), "list"),
    ],
    ids=str,
)
def test_what_is_no_matrix_is_named(matrix: Any, got: str) -> None:
    wanted = r"^similar must be a boolean matrix of shape \(5, 5\), a tensor that is dense or "
    with pytest.raises(ValueError, match=wanted + rf"sparse \(COO or CSR\); got {got}"):
        Arguments(torch.ones(5, 2), similar=matrix)


def test_other_sparse_layouts_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = torch.eye(5).bool().to_sparse_csc()
    with pytest.raises(ValueError, match="got a sparse_csc bool tensor of shape"):
        Arguments(torch.ones(5, 2), similar=matrix)


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_takes_every_form(form: str) -> None:
    of = case("random", "similar", 3)
    x, similar = torch.tensor(of.x), torch.tensor(of.similar)
    loss = RobustPairLoss(Margin(), Uniform())
    assert torch.equal(loss(x, similar=FORMS[form](similar)), loss(x, similar=similar))


def test_sparse_matrices_raise_no_warning_of_their_own() -> None:
    # In a process of its own: torch warns once.
    script = (
        "import torch, warnings\n"
        "from drometric.engine.arguments import Arguments\n"
        "from drometric.engine.signs import read_signs\n"
        "index = torch.tensor([[0, 1, 0], [1, 0, 0]])\n"
        "with warnings.catch_warnings():\n"
        "    warnings.simplefilter('ignore')\n"
        "    full = torch.ones(2, 2).bool()\n"
        "    loose = torch.sparse_coo_tensor(index, torch.ones(3).bool(), (2, 2))\n"
        "    given = [full.to_sparse(), loose, full.to_sparse_csr()]\n"
        "for matrix in given:\n"
        "    arguments = Arguments(torch.ones(2, 3), similar=matrix)\n"
        "    read_signs(arguments).block(slice(0, 2), slice(0, 2))\n"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True)
    assert not run.returncode, run.stderr.decode()
