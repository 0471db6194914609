"""The processes that torchrun started together; alone, every function does the obvious thing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that torchrun started, if it did."""
    joins = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if joins:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        if joins:
            dist.destroy_process_group()


def process_rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def process_count() -> int:
    """How many processes work together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main_process() -> bool:
    """Whether this is the process that writes files and shows progress."""
    return process_rank() == 0


def process_device() -> torch.device:
    """The GPU of this process where there are GPUs, otherwise the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(process_rank() % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def sum_over_processes(*values: float) -> list[float]:
    """Each value summed over all processes."""
    if process_count() == 1:
        return list(values)
    sums = torch.tensor(values, dtype=torch.float64, device=process_device())
    dist.all_reduce(sums)
    return [float(value) for value in sums]


def gather_objects(value: Any) -> list[Any]:
    """The value of every process, in the order of their ranks."""
    parts = [value] * process_count()
    if len(parts) > 1:
        dist.all_gather_object(parts, value)
    return parts
