"""What a measurement was made on."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
"""Instruction sets that matrix products gain from."""
PACKAGES = ("drometric", "torch", "numpy", "pytorch-metric-learning")


def describe(device: str) -> dict[str, object]:
    """The processor, what of it is used here, and how busy it is with other things."""
    shown = _processor()
    described: dict[str, object] = {
        "cpu": shown.get("model name") or platform.processor() or platform.machine(),
        "cores": _cores(),
        "flags": [flag for flag in FLAGS if flag in shown.get("flags", "").split()],
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
    }
    if device == "cuda":
        described["gpu"] = torch.cuda.get_device_name()
    return described


def slug(machine: dict[str, object]) -> str:
    """A file name for it, such as cpu-amd-epyc."""
    device = "gpu" if "gpu" in machine else "cpu"
    return f"{device}-" + re.sub(r"[^a-z0-9]+", "-", str(machine[device]).lower()).strip("-")


def versions() -> dict[str, str]:
    """Of what is measured, as far as it is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cores() -> int | None:
    """As many as this process may use, where the system says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _processor() -> dict[str, str]:
    """What Linux says of the first core."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}
