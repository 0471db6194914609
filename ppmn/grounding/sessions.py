"""Sessions of ONNX Runtime; their optimised graphs and weights are kept in the user's cache folder.

An entry of the cache is written beside its place and moved there when it is complete, so that processes may
start at once. Without a cache sessions are built every time.
"""

import hashlib
import json
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ppmn import __version__
from ppmn.errors import InputError
from ppmn.files import cache_folder, read_json, write_json
from ppmn.grounding.weight_files import WeightFile, read_weights
from ppmn.model.locate import sha256

_log = logging.getLogger(__name__)
OLDEST = (1, 20)  # version of ONNX Runtime
_VERSION = 2  # of the cache, counted up when sessions are built from the same files in another way
_DIGESTS = "sha256.json"  # of an entry's files
_CHECK_SECONDS = 0.05  # between checks while a graph is run
_KEPT = 4  # entries of the cache, those used last
Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class GraphFile:
    """A graph without weights, and the names of those it needs."""

    path: Path
    weights: Sequence[str]


@dataclass(frozen=True)
class Sessions:
    """Sessions by the names of their graphs."""

    by_name: Mapping[str, Any]
    weights: Weights = field(default_factory=dict, repr=False)  # used in place by sessions without a cache


def open_sessions(
    graphs: Mapping[str, GraphFile], files: Sequence[WeightFile], digests: Sequence[str], threads: int | None
) -> Sessions:
    """Sessions of graphs, from the cache if it has them.

    Args:
        graphs: The graphs by name.
        files: Where their weights are.
        digests: The sha256 of each of these files.
        threads: Threads of an operation; None takes one per processor core.

    Returns:
        The sessions.

    Raises:
        InputError: ONNX Runtime is missing or too old, a graph is damaged, or weights are missing.
    """
    entry = cache_folder() / f"sessions-{_key(graphs, digests)}"
    if entry.is_dir():
        try:
            return _open_entry(entry, graphs, threads)
        except Exception as error:  # a damaged file raises nearly anything
            _log.warning("%s is damaged and is made again (%s)", entry, _first_line(error))
            shutil.rmtree(entry, ignore_errors=True)
    names = sorted({name for graph in graphs.values() for name in graph.weights})
    weights = read_weights(files, names)
    try:
        _store(entry, graphs, weights)
        return _open_entry(entry, graphs, threads)
    except Exception as error:  # what a full disk or a folder of another user raises
        built = {name: _build(graph, weights, threads) for name, graph in graphs.items()}
        _log.warning(
            "%s cannot be written (%s), so the model is loaded without it; PPMN_CACHE names another folder",
            entry.parent,
            _first_line(error),
        )
        return Sessions(built, weights)


def run_session(
    session: Any, inputs: Mapping[str, NDArray[Any]], checks: Sequence[Callable[[], None]]
) -> dict[str, NDArray[Any]]:
    """The outputs of a graph by name.

    Each check is called before the graph is run and, in the same thread, many times a second while it runs.
    If one raises, the run ends after the operation that it is in, and the exception is passed on.
    """
    for check in checks:
        check()
    names = [value.name for value in session.get_outputs()]
    if not checks:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    options = onnxruntime().RunOptions()
    options.log_severity_level = 4  # an ended run is no error to print
    with ThreadPoolExecutor(1) as runner:  # its end waits for the run
        run = runner.submit(session.run, names, dict(inputs), options)
        try:
            while not wait([run], _CHECK_SECONDS).done:
                for check in checks:
                    check()
        except BaseException:
            options.terminate = True
            raise
    return dict(zip(names, run.result(), strict=True))


def onnxruntime() -> Any:
    """The package, if it is new enough."""
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise InputError(f"onnxruntime cannot be used ({error}): pip install onnxruntime") from error
    version = str(getattr(ort, "__version__", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise InputError(f"onnxruntime {version} is too old; {wanted} is needed: pip install -U onnxruntime")
    return ort


def _key(graphs: Mapping[str, GraphFile], digests: Sequence[str]) -> str:
    made_by = [_VERSION, __version__, onnxruntime().__version__, platform.system(), platform.machine()]
    content = [made_by, {name: sha256(graph.path) for name, graph in graphs.items()}, list(digests)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _open_entry(entry: Path, graphs: Mapping[str, GraphFile], threads: int | None) -> Sessions:
    """The sessions of an entry of the cache, whose weights are mapped into memory."""
    files = [file for file in entry.iterdir() if file.name != _DIGESTS]
    with ThreadPoolExecutor() as pool:
        found = dict(zip((file.name for file in files), pool.map(sha256, files), strict=True))
    if found != read_json(entry / _DIGESTS):
        raise InputError("its files have another sha256")
    with suppress(OSError):
        os.utime(entry)
    ort, options = onnxruntime(), _options(threads)
    return Sessions(
        {
            name: ort.InferenceSession(entry / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
            for name in graphs
        }
    )


def _store(entry: Path, graphs: Mapping[str, GraphFile], weights: Weights) -> None:
    """Write an entry; the one of a process that was faster is kept."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".sessions-", dir=entry.parent) as part:
        folder = Path(part) / entry.name
        folder.mkdir()
        for name, graph in graphs.items():
            _build(graph, weights, None, save_as=folder / f"{name}.onnx")
        write_json(folder / _DIGESTS, {file.name: sha256(file) for file in sorted(folder.iterdir())})
        try:
            folder.rename(entry)
        except OSError:
            if not entry.is_dir():
                raise
    others = sorted(entry.parent.glob("sessions-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for old in others[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _build(graph: GraphFile, weights: Weights, threads: int | None, save_as: Path | None = None) -> Any:
    """A session of a graph; saved, it is optimised only as far as every processor can use."""
    ort, options = onnxruntime(), _options(threads)
    own = {name: weights[name] for name in graph.weights}
    if save_as is not None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(save_as)
        external = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{external}file_name", f"{save_as.stem}.weights")
        options.add_session_config_entry(f"{external}min_size_in_bytes", "1024")
    try:
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in own.values()]
        options.add_external_initializers(list(own), values)
        return ort.InferenceSession(graph.path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a damaged graph raises nearly anything
        raise InputError(
            f"{graph.path} is damaged or does not fit the model ({_first_line(error)}); "
            "ppmn export writes it again"
        ) from error


def _options(threads: int | None) -> Any:
    options = onnxruntime().SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = threads or 0
    return options


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
