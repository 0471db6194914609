"""The network on ONNX Runtime, from the graphs and the weights of a model folder; torch is not needed."""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppmn.config import ModelConfig
from ppmn.errors import InputError
from ppmn.files import read_json
from ppmn.grounding.runtime import RawMaps, RuntimePrecision, allows_reduced_precision, sigmoid
from ppmn.grounding.sessions import GraphFile, Sessions, open_sessions, run_session
from ppmn.grounding.weight_files import weight_files
from ppmn.model.locate import (
    MODEL_PREFIX,
    TEXT_FOLDER,
    check_base_weights,
    model_folder,
    read_config,
    resolve_source,
    sha256,
)
from ppmn.model.preprocess import Preprocess
from ppmn.model.windows import Tokens, align_pieces, central_places, window_starts
from ppmn.types import Map, Size, Span

GRAPHS_VERSION = 5  # of what onnx.json describes
GRAPHS_FOLDER, DESCRIPTION_FILE = "onnx", "onnx.json"
# fields of the configuration that graphs do not depend on
_OUTSIDE = {
    "text",
    "threshold",
    "relative_threshold",
    "hysteresis_peak",
    "short_side",
    "long_side",
    "calibration",
}
_DESCRIBED = {
    "config",
    "weights",
    "stride",
    "token_stride",
    "multiple",
    "resize_multiple",
    "padding_color",
    "window",
    "first_id",
    "last_id",
}


def is_installed(package: str) -> bool:
    """Whether a package can be found, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:
        return False


def has_graphs(folder: Path) -> bool:
    """Whether a model folder has graphs, whatever state they are in, and ONNX Runtime is installed."""
    return is_installed("onnxruntime") and (folder / GRAPHS_FOLDER / DESCRIPTION_FILE).is_file()


def graphs_fit(description: Mapping[str, Any], config: ModelConfig) -> bool:
    """Whether graphs were made from a network of this configuration."""
    made_from, wanted = (dict(c) for c in (description["config"], json.loads(json.dumps(asdict(config)))))
    for fields in (made_from, wanted):
        fields["image"] = {k: v for k, v in fields["image"].items() if k not in ("sha256", "precision")}
        for name in _OUTSIDE:
            fields.pop(name, None)
    return made_from == wanted


class OnnxRuntime:
    """A `Runtime` on the CPU by ONNX Runtime.

    Args:
        folder: A model folder with graphs.
        precision: "auto" encodes images in 8 bits where the model allows it, "float32" never.
        threads: Threads of an operation; None takes one per processor core.

    Raises:
        InputError: The folder has no graphs, or its files do not fit together.
    """

    name, device = "onnx", "cpu"

    def __init__(
        self, folder: Path, *, precision: RuntimePrecision = "auto", threads: int | None = None
    ) -> None:
        self.config = read_config(folder)
        self.graphs = read_description(folder / GRAPHS_FOLDER)
        if not graphs_fit(self.graphs, self.config):
            raise InputError(f"{folder} has graphs of another network; ppmn export writes them again")
        self.stride, self.token_stride = int(self.graphs["stride"]), int(self.graphs["token_stride"])
        sides = self.config.short_side, self.config.long_side
        self.preprocess = Preprocess(*sides, self.graphs["resize_multiple"])
        self.tokenizer = _tokenizer(self._text_folder())
        reduced = precision == "auto" and allows_reduced_precision(self.config)
        image = "image_8bit" if reduced and "image_8bit" in self.graphs["weights"] else "image"
        self.precision = "8 bits" if image == "image_8bit" else "float32"
        self._sessions = self._open(folder, image, threads)
        self._image = image
        self._checks: tuple[Callable[[], None], ...] = ()  # replaced as a whole, while other threads run
        self._changing = Lock()

    def _open(self, folder: Path, image: str, threads: int | None) -> Sessions:
        digests = check_base_weights(folder, self.config)
        files = weight_files(folder, self.config)
        own = [digests.get(file.path) or sha256(file.path) for file in files]
        names = [image, "text", "phrases", *(["objects"] if self.config.pointing else [])]
        weights = self.graphs["weights"]
        if missing := set(names) - set(weights):
            raise InputError(f"{folder} has no graph {min(missing)}; ppmn export writes its graphs again")
        graphs = {n: GraphFile(folder / GRAPHS_FOLDER / f"{n}.onnx", weights[n]) for n in names}
        return open_sessions(graphs, files, own, threads)

    def padded_size(self, height: int, width: int) -> Size:
        """The size to which a resized image is padded."""
        side = self.graphs["multiple"]
        return -(-height // side) * side, -(-width // side) * side

    def encode(self, images: Sequence[NDArray[np.uint8]]) -> list[dict[str, NDArray[np.float32]]]:
        """The features of resized images (3, h, w), one after the other."""
        return [self.encode_one(image) for image in images]

    def encode_one(self, image: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        """The features of one resized image, by name."""
        _, height, width = image.shape
        padded = np.empty((3, *self.padded_size(height, width)), np.float32)
        padded[:] = np.array(self.graphs["padding_color"], np.float32)[:, None, None]
        padded[:, :height, :width] = image
        return self._run(self._image, {"image": padded})

    def ground(
        self, features: Mapping[str, NDArray[np.float32]], caption: str, spans: Sequence[Span]
    ) -> RawMaps:
        """The maps of the spans of a caption on the features of one image."""
        tokens = self.tokenize(caption, spans)
        pool, sizes = self.pool(tokens)
        inputs = {"words": self.words(tokens.ids), "pool": pool, **features}
        found = self._run("phrases", inputs)
        said = (found.get(name) for name in ("presence", "certainty", "somewhere"))
        return RawMaps(list(found["maps"]), list(found.get("indices", ())), sizes, *said)

    def draw_objects(self, features: Mapping[str, NDArray[np.float32]], points: NDArray[np.intp]) -> Map:
        """The objects at tokens (n,), flat, of an image, whatever they are: probabilities (n, H, W)."""
        if self.config.pointing is None:
            raise InputError("only a model that points draws objects")
        return sigmoid(self._run("objects", {"points": np.asarray(points, np.int64), **features})["objects"])

    def check_before_steps(self, check: Callable[[], None]) -> Callable[[], None]:
        """Call `check` before and while a graph is run, which its exception stops; returns what ends that."""
        with self._changing:
            self._checks = (*self._checks, check)

        def end() -> None:
            with self._changing:
                self._checks = tuple(other for other in self._checks if other is not check)

        return end

    def _run(self, name: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The outputs of a graph by name."""
        return run_session(self._sessions.by_name[name], inputs, self._checks)

    def nbytes(self, features: Mapping[str, NDArray[np.float32]]) -> int:
        """How much memory the features of one image take."""
        return sum(array.nbytes for array in features.values())

    def tokenize(self, caption: str, spans: Sequence[Span]) -> Tokens:
        """The word pieces of a caption and of its spans."""
        encoded = self.tokenizer.encode(caption, add_special_tokens=False)
        return Tokens(tuple(encoded.ids), align_pieces(caption, spans, encoded.offsets))

    def words(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """One vector per word piece, each from the window in which it is most central: (n, C_r)."""
        starts = window_starts(len(ids), self.graphs["window"])
        best, positions = central_places(len(ids), starts, self.graphs["window"])
        before, after = [self.graphs["first_id"]], [self.graphs["last_id"]]
        windows = [before + list(ids[start : start + self.graphs["window"]]) + after for start in starts]
        return self._run("text", {"ids": np.array(windows, np.int64)})["vectors"][best, positions]

    def pool(self, tokens: Tokens) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """The weights of the words in each query (M, n), and the number of queries of each phrase."""
        rows = []
        for pieces in tokens.pieces:
            one_hot = np.zeros((len(pieces), len(tokens.ids)), np.float32)
            one_hot[np.arange(len(pieces)), list(pieces)] = 1
            rows.append(one_hot if self.config.query == "word" else one_hot.mean(0, keepdims=True))
        return np.concatenate(rows), tuple(len(own) for own in rows)

    def _text_folder(self) -> Path:
        source = self.config.text.source
        if source.startswith(MODEL_PREFIX):
            return model_folder(source.removeprefix(MODEL_PREFIX)) / TEXT_FOLDER
        return Path(resolve_source(source))


def read_description(folder: Path) -> dict[str, Any]:
    """What `onnx.json` says of the graphs beside it."""
    file = folder / DESCRIPTION_FILE
    if not file.is_file():
        raise InputError(
            f"{folder.parent} has no ONNX graphs; where torch is installed, ppmn export writes them"
        )
    content = read_json(file)
    version = content.get("version") if isinstance(content, dict) else None
    if version != GRAPHS_VERSION:
        raise InputError(
            f"{file} is of version {version}, but this ppmn reads version {GRAPHS_VERSION}; "
            "ppmn export writes it again"
        )
    if missing := _DESCRIBED - set(content):
        raise InputError(f"{file} lacks {', '.join(sorted(missing))}; ppmn export writes it again")
    own, weights = content["config"], content["weights"]
    if not (isinstance(own, dict) and isinstance(own.get("image"), dict) and isinstance(weights, dict)):
        raise InputError(f"{file} is damaged; ppmn export writes it again")
    return dict(content)


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers has no error of its own
        raise InputError(f"{file} cannot be read ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
