"""The processes that torchrun started together; alone, functions do the obvious thing, without torch."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or _joined() is not None:
        yield
        return
    import torch
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def process_rank() -> int:
    """The number of this process, from 0."""
    dist = _joined()
    return dist.get_rank() if dist is not None else 0


def process_count() -> int:
    """How many processes work together."""
    dist = _joined()
    return dist.get_world_size() if dist is not None else 1


def is_main_process() -> bool:
    """Whether this is the process that writes files and shows progress."""
    return process_rank() == 0


def process_device() -> "torch.device":
    """The GPU of this process where there are GPUs, otherwise the CPU."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(process_rank() % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def sum_over_processes(*values: float) -> list[float]:
    """Each value summed over all processes."""
    dist = _joined()
    if dist is None:
        return list(values)
    import torch

    sums = torch.tensor(values, dtype=torch.float64, device=process_device())
    dist.all_reduce(sums)
    return [float(value) for value in sums]


def gather_objects(value: Any) -> list[Any]:
    """The value of every process, in the order of their ranks."""
    dist, parts = _joined(), [value] * process_count()
    if dist is not None:
        dist.all_gather_object(parts, value)
    return parts


def _joined() -> Any:
    """torch.distributed where this process has joined others; None: it works alone."""
    if "torch" not in sys.modules:
        return None
    import torch.distributed as dist

    return dist if dist.is_initialized() else None
