"""Ctrl-C during training: it waits for the end of the step, so that no half-applied step is saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_interrupt() -> Iterator[Callable[[], bool]]:
    """Hold back Ctrl-C and tell whether it was pressed; a second Ctrl-C interrupts at once."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield pressed.is_set
        return

    def hold(*_: Any) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def ignore_interrupt(_: int) -> None:
    """Leave Ctrl-C to the main process, in a worker that reads data."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
