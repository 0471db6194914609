"""Work in a line: one thread does it, a bounded number waits, and what nobody waits for is not begun."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
POLL = 0.25  # seconds between looks at whether the client is still there


class QueueFullError(Exception):
    """As many wait as may; `retry` seconds from now some of them will be done."""

    def __init__(self, retry: int) -> None:
        super().__init__(f"the server is busy; try again in {retry} s")
        self.retry = retry


class ClientGoneError(Exception):
    """Nobody waits for the answer."""


class TooLongError(Exception):
    """The time of a request is over."""


@dataclass(eq=False)
class Job:
    call: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)


class Work:
    """A queue with one worker thread, named for what it does."""

    def __init__(self, name: str, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self.refused = self.dropped = self.late = 0
        self._mean = 0.1  # seconds a job takes, of the last few
        self._jobs: deque[Job] = deque()
        self._wake = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Jobs that wait."""
        return len(self._jobs)

    async def do(self, call: Callable[[], T], gone: Callable[[], Awaitable[bool]]) -> T:
        """The result of `call`, made by the worker when its turn comes."""
        job = self._put(call)
        waiting = asyncio.wrap_future(job.future)
        until = time.monotonic() + self.seconds
        try:
            while not (await asyncio.wait({waiting}, timeout=POLL))[0]:
                if await gone():
                    self.dropped += 1
                    raise ClientGoneError
                if time.monotonic() > until:
                    self.late += 1
                    raise TooLongError(f"the request took more than {self.seconds:g} s, which is the most")
            return waiting.result()
        finally:
            self._drop(job)

    def close(self) -> None:
        with self._wake:
            self._open = False
            self._wake.notify()
        self._thread.join(timeout=5)

    def _put(self, call: Callable[[], Any]) -> Job:
        with self._wake:
            if len(self._jobs) >= self.most:
                self.refused += 1
                raise QueueFullError(min(30, max(1, math.ceil(self._mean * len(self._jobs) / 2))))
            job = Job(call)
            self._jobs.append(job)
            self._wake.notify()
        return job

    def _drop(self, job: Job) -> None:
        """Give the place in the line free, unless the job has begun."""
        with self._wake:
            if job in self._jobs:
                self._jobs.remove(job)
        job.future.cancel()

    def _run(self) -> None:
        while True:
            with self._wake:
                while self._open and not self._jobs:
                    self._wake.wait()
                if not self._open:
                    return
                job = self._jobs.popleft()
                begun = job.future.set_running_or_notify_cancel()
            if begun:
                self._finish(job)
            del job  # or the last photo would be held until the next one

    def _finish(self, job: Job) -> None:
        start = time.monotonic()
        try:
            job.future.set_result(job.call())
        except BaseException as error:  # whatever it is, the one who waits is told
            job.future.set_exception(error)
        self._mean += 0.2 * (time.monotonic() - start - self._mean)
