"""The memory of one forward and backward pass: its peak beyond the inputs and their gradient."""

import multiprocessing
import os
import resource
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from cases import CASES, Case
from inputs import PER_CLASS, Setting
from torch import Tensor

STATM = Path("/proc/self/statm")


def is_measurable(device: str) -> bool:
    """On a GPU, and on Linux."""
    return device == "cuda" or STATM.exists()


@cache
def peak_mib(case: Case, implementation: str, batch: int, setting: Setting) -> float | None:
    """Its MiB; on the CPU those that a fresh process grows by, None if that fails."""
    if setting.device == "cuda":
        return _of_gpu(case, implementation, batch, setting)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["drometric", "pytorch_metric_learning.losses"])
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, CASES.index(case), implementation, batch, setting)
    child = context.Process(target=_send, args=arguments)
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return None
    finally:
        child.join()


def _send(
    sender: Connection, index: int, implementation: str, batch: int, setting: Setting
) -> None:
    torch.set_num_threads(setting.threads)
    sender.send(_of_process(CASES[index], implementation, batch, setting))


def _of_process(case: Case, implementation: str, batch: int, setting: Setting) -> float:
    x, labels = setting.inputs(case.data, batch)
    _warm_up(case, implementation, setting)
    step = case.step(implementation, x, labels)
    # What is held now. If making the inputs took more for a moment, and the run does not, the
    # answer is that: too high, but small.
    noted = int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    step.run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _mib(peak - noted, x)


def _of_gpu(case: Case, implementation: str, batch: int, setting: Setting) -> float:
    _warm_up(case, implementation, setting)
    step = case.step(implementation, *setting.inputs(case.data, batch))
    torch.cuda.reset_peak_memory_stats()
    noted = torch.cuda.memory_allocated()
    step.run()
    return _mib(torch.cuda.max_memory_allocated() - noted, step.x)


def _warm_up(case: Case, implementation: str, setting: Setting) -> None:
    case.step(implementation, *setting.inputs(case.data, 2 * PER_CLASS)).run()


def _mib(grown: int, x: Tensor) -> float:
    gradient = 0 if x.grad is None else x.grad.nbytes
    return max(grown - gradient, 0) / 2**20
