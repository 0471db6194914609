"""Whether bfloat16 pays on this processor."""

import os
import signal
import time
from functools import cache
from typing import Any

import torch

from ppmn.errors import InputError

_SECONDS = 10  # after which a trial is given up


def has_bfloat16() -> bool:
    """Whether the processor has bfloat16 instructions that run; without them float32 is faster."""
    return _announces_bfloat16() and not bfloat16_faults()


@cache
def bfloat16_faults() -> bool:
    """Whether products in bfloat16 end the process, tried in a child.

    Some virtual machines announce instructions that they do not run.
    """
    if not _announces_bfloat16() or not hasattr(os, "fork"):
        return False
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGILL, signal.SIG_DFL)  # no report of a fault that is expected
        _try_product()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def require_bfloat16(device: torch.device) -> None:
    """Refuse a device that cannot train in bfloat16."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise InputError("precision is bfloat16, which this GPU does not support; set precision=float32")
    if device.type == "cpu" and bfloat16_faults():
        raise InputError("precision is bfloat16, whose instructions fault here; set precision=float32")


@cache
def fused_attention_uses_bfloat16() -> bool:
    """Whether torch's fused attention multiplies in bfloat16 on this processor.

    It does so on those that also have AMX for half precision, where it takes 0.4 of the time of plain
    products (1,345 tokens); on others it multiplies in float32.
    """
    return bool(_capabilities().get("amx_fp16"))


def _announces_bfloat16() -> bool:
    known = _capabilities()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def _capabilities() -> dict[str, Any]:
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # missing before torch 2.8
    return found


def _try_product() -> None:
    """A product large enough for every instruction that torch may choose; ends the process."""
    signal.alarm(_SECONDS)
    torch.set_num_threads(1)  # the threads of the parent are not there
    matrix = torch.ones(256, 256, dtype=torch.bfloat16)
    torch.mm(matrix, matrix)
    os._exit(0)


@cache
def bfloat16_is_faster() -> bool:
    """Whether products take clearly less time in bfloat16, which not every processor that has it achieves."""
    return has_bfloat16() and 1.2 * _product_time(torch.bfloat16) < _product_time(torch.float32)


def _product_time(dtype: torch.dtype) -> float:
    """The shortest of a few times of a linear layer."""
    layer, rows = torch.ones(384, 384, dtype=dtype), torch.ones(512, 384, dtype=dtype)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        torch.nn.functional.linear(rows, layer)
        times.append(time.perf_counter() - start)
    return min(times)
