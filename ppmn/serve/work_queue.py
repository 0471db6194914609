"""A queue with one worker thread: waiting is bounded, and jobs that no client waits for are not started."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

_Result = TypeVar("_Result")
_POLL_SECONDS = 0.25  # between checks whether the client is still connected


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

    async def run(self, call: Callable[[], _Result], is_gone: Callable[[], Awaitable[bool]]) -> _Result:
        """The result of `call` in the worker thread; `is_gone` says whether the client has left.

        HTTPException 503 is raised if the queue is full, 499 if the client left, 504 after `max_seconds`.
        """
        waiting = len(self)
        if waiting >= self.max_waiting:
            seconds = min(30, max(1, math.ceil(self._mean_seconds * waiting / 2)))  # until some are done
            busy = f"the server is busy; try again in {seconds} s"
            raise HTTPException(503, busy, {"Retry-After": str(seconds)})
        job = self._worker.submit(self._timed, call)
        self._jobs.add(job)
        result = asyncio.wrap_future(job)
        deadline = time.monotonic() + self.max_seconds
        try:
            while not (await asyncio.wait({result}, timeout=_POLL_SECONDS))[0]:
                if await is_gone():
                    raise HTTPException(499, "the client disconnected")
                if time.monotonic() > deadline:
                    raise HTTPException(
                        504, f"the request took longer than {self.max_seconds:g} s, the limit"
                    )
            return result.result()
        finally:
            job.cancel()  # does nothing to a job that has started
            self._jobs.discard(job)

    def close(self) -> None:
        """Drop the waiting jobs and end the worker thread after the running one."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _timed(self, call: Callable[[], _Result]) -> _Result:
        start = time.monotonic()
        try:
            return call()
        finally:
            self._mean_seconds += 0.2 * (time.monotonic() - start - self._mean_seconds)
