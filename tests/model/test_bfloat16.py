"""Processors that announce bfloat16 instructions which do not run."""

import os
import signal
from collections.abc import Callable

import pytest
import torch

from ppmn.model import bfloat16


def _fault() -> None:
    os.kill(os.getpid(), signal.SIGILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a trial needs os.fork")
@pytest.mark.parametrize(("trial", "works"), [(_fault, False), (lambda: os._exit(0), True)])
def test_bfloat16_is_used_only_if_a_trial_survives(
    trial: Callable[[], None], works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setattr(bfloat16, "_try_product", trial)
    assert bfloat16.bfloat16_faults.__wrapped__() is not works


def test_bfloat16_is_not_tried_without_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True}, raising=False)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a trial was started"), raising=False)
    assert not bfloat16.bfloat16_faults.__wrapped__() and not bfloat16.has_bfloat16()
