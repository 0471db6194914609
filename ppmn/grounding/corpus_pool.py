"""A pool of Ray actors: connect to a cluster or start one, and send every row of a list to one of the actors.

Ray restarts a lost actor, on another node where its own is gone, and sends it its rows again.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ppmn.errors import InputError

_CONNECT_SECONDS = 20
_OBJECT_STORE = 500_000_000  # bytes; what travels through Ray is small
_WINDOW = 1000  # rows that Ray is given at a time: memory does not grow with the corpus


@dataclass(frozen=True)
class PoolOptions:
    """Where the work is done.

    Attributes:
        address: A Ray cluster: "auto" or "HOST:PORT"; None starts Ray on this machine.
        actors: Processes with a model each; None means one per `threads` CPUs of the cluster.
        threads: Threads of each actor on a CPU.
        device: "cpu" or "cuda"; None takes a GPU on the nodes that have one.
    """

    address: str | None = None
    actors: int | None = None
    threads: int = 1
    device: str | None = None

    def __post_init__(self) -> None:
        for name in ("actors", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be 1 or more")


def import_ray() -> Any:
    """Ray, or a sentence that names the extra."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError("Ray is not installed: pip install 'ppmn[ray]'") from error
    return ray


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster or started here; a connection that the caller has is used and kept."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a warning about GPUs
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # read before Ray starts
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    options = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        _start_here(ray, options)
    else:
        _within_limit(lambda: _connect(ray, address, options), address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start_here(ray: Any, options: Mapping[str, Any]) -> None:
    try:
        ray.init(address="local", include_dashboard=False, object_store_memory=_OBJECT_STORE, **options)
    except Exception as error:  # Ray raises nearly anything
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"Ray could not be started on this machine ({reason})") from error


def _connect(ray: Any, address: str, options: Mapping[str, Any]) -> None:
    """Connect, unless nothing listens at the address: Ray itself would try for minutes."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"the address {address!r} must be auto or HOST:PORT")
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS / 2).close()
    ray.init(address=address, **options)


def _within_limit(connect: Callable[[], Any], address: str) -> None:
    """Connect in a thread of its own: Ray may try for minutes, and so may the search for a host's address."""
    faults: list[BaseException] = []

    def run() -> None:
        try:
            connect()
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_CONNECT_SECONDS)
    if thread.is_alive():
        raise InputError(f"no Ray cluster answers at {address} within {_CONNECT_SECONDS} seconds")
    if faults and isinstance(faults[0], InputError):
        raise faults[0]
    if faults:
        reason = str(faults[0]).strip().partition("\n")[0]
        raise InputError(f"no Ray cluster answers at {address} ({reason})") from faults[0]


def run_pool(
    ray: Any,
    worker: type,
    arguments: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    options: PoolOptions,
) -> Iterator[dict[str, Any]]:
    """Send every row to one of the actors.

    Args:
        ray: What `connected` gives.
        worker: A class that is made once per actor; calling it with a row returns a row.
        arguments: Its keyword arguments.
        rows: The rows, each of the same fields.
        options: Where the work is done.

    Yields:
        What the worker returned for each row, in the order of arrival.

    Raises:
        InputError: The worker failed.
    """
    _configure(ray)
    constructor = {"worker": worker, "arguments": dict(arguments), "threads": options.threads}
    constructor["folder"] = str(Path.cwd())
    remaining = iter(rows)
    while window := list(islice(remaining, _WINDOW)):
        actors, resources = _resources(ray, options)
        pool = ray.data.ActorPoolStrategy(size=min(actors, len(window)), max_tasks_in_flight_per_actor=2)
        blocks = ray.data.from_items(window, override_num_blocks=len(window))
        done = blocks.map(_Process, fn_constructor_kwargs=constructor, compute=pool, **resources)
        yield from _results(done)


def _results(done: Any) -> Iterator[dict[str, Any]]:
    try:
        yield from done.iter_rows()
    except Exception as error:  # what actors and nodes raise, in many wrappings
        raise InputError(f"Ray stopped the run: {_reason(error)}") from error


def _resources(ray: Any, options: PoolOptions) -> tuple[int, dict[str, float]]:
    """How many actors there are, and what each reserves.

    Of CPUs it is half of what an actor uses: when a node is lost, its actors fit on the nodes that are left.
    Of GPUs it is one, since Ray would put two halves on the same one.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus = [int(node.get("CPU", 0)) for node in nodes]
    gpus = sum(int(node.get("GPU", 0)) for node in nodes) if options.device != "cpu" else 0
    actors = options.actors or gpus or max(1, sum(cpus) // options.threads)
    reserved = {"num_cpus": min(options.threads, max(cpus)) / 2}
    return actors, reserved | ({"num_gpus": 1} if gpus else {})


class _Process:
    """A worker made in a process with a fixed number of threads, and in the folder of the driver."""

    def __init__(self, worker: type, arguments: dict[str, Any], threads: int, folder: str) -> None:
        torch.set_num_threads(threads)
        with suppress(OSError):  # this node does not have it: names that are not relative can be read
            os.chdir(folder)  # an actor starts in the folder in which its cluster was started
        self.worker = worker(**arguments)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.worker(row)
        return found


def _configure(ray: Any) -> None:
    """Replace actors that die while they start; keep Ray's progress bars and log off the terminal."""
    context = ray.data.DataContext.get_current()
    context.max_consecutive_actor_init_deaths = 3
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_auto_log_stats = False
    context.execution_options.preserve_order = False
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _reason(error: BaseException) -> str:
    """The last line of the message of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
