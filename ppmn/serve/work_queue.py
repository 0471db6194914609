"""A queue with one worker thread: waiting is bounded, and work that no client waits for is stopped."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

_Result = TypeVar("_Result")
_POLL_SECONDS = 0.25  # between checks whether the client is still connected
_running = threading.local()  # `abandoned`: the event of the job that a worker thread runs


class AbandonedError(Exception):
    """No client waits for the result of this job any more."""


def check_abandoned(*_: object) -> None:
    """Raise AbandonedError if this thread runs a job that no client waits for; called between stages."""
    abandoned = getattr(_running, "abandoned", None)
    if abandoned is not None and abandoned.is_set():
        raise AbandonedError


class WorkQueue:
    """Runs jobs one after the other; used from one event loop."""

    def __init__(self, name: str, max_waiting: int, max_seconds: float) -> None:
        self.max_waiting = max_waiting
        self.max_seconds = max_seconds
        self._mean_seconds = 0.1  # of the last few jobs
        self._jobs: set[Future[Any]] = set()  # that a client waits for
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=name)

    def __len__(self) -> int:
        """The number of jobs that have not started."""
        return sum(not (job.running() or job.done()) for job in self._jobs.copy())

    async def run(
        self, call: Callable[[], _Result], is_gone: Callable[[], Awaitable[bool]], *, deadline: float
    ) -> _Result:
        """The result of `call` in the worker thread.

        When the client leaves or the time is up, running work stops at its next `check_abandoned`.

        Args:
            call: The work.
            is_gone: Whether the client has left.
            deadline: The time, by `time.monotonic`, at which the request must be answered.

        Raises:
            HTTPException: 503 if the queue is full, 499 if the client left, 504 after the deadline.
        """
        self._check_free()
        abandoned = threading.Event()
        job = self._worker.submit(self._timed, call, abandoned)
        self._jobs.add(job)
        result = asyncio.wrap_future(job)
        try:
            while True:
                remaining = deadline - time.monotonic()
                if (await asyncio.wait({result}, timeout=max(0.0, min(_POLL_SECONDS, remaining))))[0]:
                    return result.result()
                if await is_gone():
                    raise HTTPException(499, "the client disconnected")
                if time.monotonic() >= deadline:
                    limit = f"{self.max_seconds:g} s, the limit"
                    raise HTTPException(504, f"the request took longer than {limit}")
        finally:
            abandoned.set()
            result.cancel()  # and the job, unless it has started
            self._jobs.discard(job)

    def close(self) -> None:
        """Drop the waiting jobs and end the worker thread after the running one."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _check_free(self) -> None:
        waiting = len(self)
        if waiting >= self.max_waiting:
            seconds = min(30, max(1, math.ceil(self._mean_seconds * waiting / 2)))  # until some are done
            busy = f"the server is busy; try again in {seconds} s"
            raise HTTPException(503, busy, {"Retry-After": str(seconds)})

    def _timed(self, call: Callable[[], _Result], abandoned: threading.Event) -> _Result:
        start = time.monotonic()
        _running.abandoned = abandoned
        try:
            return call()
        finally:
            self._mean_seconds += 0.2 * (time.monotonic() - start - self._mean_seconds)
