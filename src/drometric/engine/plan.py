"""How a call is to be computed: which path, in tiles of what size, screened in which precision."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch

from drometric.checks import number, one_of, whole

Path = Literal["plain", "dense", "tiles"]

SCREENS = (torch.bfloat16, torch.float32, torch.float64)

DENSE_PAIRS = {"cpu": 256 * 256, "other": 1100 * 1100}
"""Up to so many similarities are held at once: then calls cost more than arithmetic."""

HARD_PAIRS = {"cpu": 160 * 160, "other": 1100 * 1100}
"""The same for hard sets, which need float64 and use few pairs."""


@dataclass(frozen=True)
class Plan:
    """The choices of one call. None of them changes which pairs are selected."""

    path: Path
    """plain: as the paper writes it. dense: all pairs at once. tiles: never all at once."""
    tile: tuple[int, int]
    """Rows and columns of a tile."""
    screening_tile: tuple[int, int]
    """The same where candidates are looked for: larger, since little is done with it."""
    screen: torch.dtype
    """What candidates are looked for in first: bfloat16, or float32."""
    spare: int
    """How many candidates beyond those wanted are held before a finer screen is tried."""


def few(pairs: dict[str, int], rows: int, columns: int, device: torch.device) -> bool:
    """Whether a call has no more similarities than a limit says for its device."""
    return rows * columns <= pairs.get(device.type, pairs["other"])


def choose(rows: int, columns: int, device: torch.device) -> Plan:
    """The plan for a call of this size on this device, as far as nobody overrode it."""
    spare = 16 * (rows + columns) + 2**16
    # On a CPU a tile and a copy of it stay in the caches; a GPU is to be kept busy.
    tile, screening_tile = (4096, 4096), (4096, 8192)
    if device.type == "cpu":
        tile = (80 if rows <= 1024 else min(512, rows // 5)), 1024
        screening_tile = max(tile[0], 320), tile[1]
    path: Path = "tiles"
    if few(DENSE_PAIRS, rows, columns, device):
        path = "dense" if rows * columns else "plain"
    screen = torch.float32
    if not few(HARD_PAIRS, rows, columns, device) and "screen" not in _overridden.get({}):
        screen = screening_dtype(device.type, torch.get_num_threads())
    return replace(Plan(path, tile, screening_tile, screen, spare), **_overridden.get({}))


@contextmanager
def planned(**choices: Any) -> Iterator[None]:
    """Within the context, calls are computed as `choices` (fields of `Plan`) say.

    >>> with planned(path="tiles", tile=(7, 64), screen=torch.float32):
    ...     choose(1000, 1000, torch.device("cpu")).tile
    (7, 64)
    """
    unknown = choices.keys() - Plan.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"a plan has no {sorted(unknown)}; it has {[*Plan.__dataclass_fields__]}")
    _check(choices)
    if "tile" in choices:
        choices = {"screening_tile": choices["tile"], **choices}
    token = _overridden.set({**_overridden.get({}), **choices})
    try:
        yield
    finally:
        _overridden.reset(token)


def _check(choices: dict[str, Any]) -> None:
    """A `ValueError` for a choice that no plan can have."""
    if "path" in choices:
        one_of("path", choices["path"], ("plain", "dense", "tiles"))
    if "screen" in choices and choices["screen"] not in SCREENS:
        names = ", ".join(str(dtype) for dtype in SCREENS)
        raise ValueError(f"screen must be one of {names}; got {choices['screen']!r}")
    for name in ("tile", "screening_tile"):
        shape = choices.get(name, (1, 1))
        if not isinstance(shape, tuple) or len(shape) != 2:
            raise ValueError(f"{name} must be rows and columns, such as (512, 1024); got {shape!r}")
        for size in shape:
            whole(name, size)
    number("spare", choices.get("spare", 0), at_least=0.0)


@cache
def screening_dtype(device: str, threads: int) -> torch.dtype:
    """bfloat16 where its products are at least twice as fast as those of float32, measured once.

    Some CPUs have instructions for bfloat16, others emulate it, several times slower than
    float32. It takes some ten milliseconds; `threads` only tells one measurement from another.
    """
    # Large enough that it is the product that takes the time.
    size, times = 512 if device == "cpu" else 4096, {}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(size, 512, dtype=dtype, device=device)
        out = torch.empty(size, size, dtype=dtype, device=device)
        times[dtype] = min(_seconds(x, out) for _ in range(6))
    return torch.bfloat16 if 2 * times[torch.bfloat16] < times[torch.float32] else torch.float32


def _seconds(x: torch.Tensor, out: torch.Tensor) -> float:
    start = time.perf_counter()
    for _ in range(3):
        torch.mm(x, x.T, out=out)
    out[0, 0].item()
    return time.perf_counter() - start


_overridden: ContextVar[dict[str, Any]] = ContextVar("overridden")
