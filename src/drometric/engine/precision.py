"""Products in the precision that bounds on their error are made for, whatever the user has set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def in_full_precision(device: str) -> Iterator[None]:
    """Without autocast, and with products of float32 that are no coarser than float32.

    `torch.set_float32_matmul_precision("high")` lets them be rounded to ten bits or so: then other
    pairs would be the hardest. The setting is the whole process's, and put back at once.
    """
    with ExitStack() as settings:
        if torch.is_autocast_enabled(device):
            settings.enter_context(torch.autocast(device, enabled=False))
        try:
            coarse = torch.get_float32_matmul_precision() != "highest"
        except RuntimeError:  # the user has set one backend by itself
            settings.enter_context(_each_backend())
        else:
            if coarse:
                settings.enter_context(_all_backends())
        yield


@contextmanager
def _all_backends() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _each_backend() -> Iterator[None]:
    mkldnn: Any = torch.backends.mkldnn
    backends = [torch.backends.cuda.matmul, mkldnn.matmul]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
