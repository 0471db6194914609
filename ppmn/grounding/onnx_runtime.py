"""The network on ONNX Runtime, from the graphs and the weights of a model folder; torch is not needed."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppmn.config import ModelConfig
from ppmn.errors import InputError
from ppmn.files import read_json
from ppmn.grounding.runtime import RawMaps
from ppmn.grounding.weight_files import read_weights
from ppmn.model.locate import (
    CONFIG_FILE,
    MODEL_PREFIX,
    TEXT_FOLDER,
    model_folder,
    read_config,
    resolve_source,
)
from ppmn.model.preprocess import Preprocess
from ppmn.model.windows import Tokens, align_pieces, central_places, window_starts
from ppmn.types import Size, Span

GRAPHS_VERSION = 1  # of what onnx.json describes
GRAPH_NAMES = ("image", "text", "phrases")
GRAPHS_FOLDER, DESCRIPTION_FILE = "onnx", "onnx.json"


def is_installed(package: str) -> bool:
    """Whether a package can be found, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:
        return False


def has_graphs(folder: Path) -> bool:
    """Whether a model folder can be run on ONNX Runtime, and that is installed."""
    if not is_installed("onnxruntime") or not (folder / GRAPHS_FOLDER / DESCRIPTION_FILE).is_file():
        return False
    return graphs_fit(read_description(folder / GRAPHS_FOLDER), ModelConfig.load(folder / CONFIG_FILE))


def graphs_fit(description: Mapping[str, Any], config: ModelConfig) -> bool:
    """Whether graphs were made from a network of this configuration."""
    made_from, wanted = (dict(c) for c in (description["config"], json.loads(json.dumps(asdict(config)))))
    for fields in (made_from, wanted):
        fields["image"] = {k: v for k, v in fields["image"].items() if k not in ("sha256", "precision")}
        for name in ("text", "threshold", "relative_threshold", "hysteresis_peak", "short_side", "long_side"):
            fields.pop(name, None)  # outside of the graphs
    return made_from == wanted


class OnnxRuntime:
    """A `Runtime` on the CPU by ONNX Runtime.

    Args:
        folder: A model folder with graphs.
        threads: Threads of an operation; None takes one per processor core.

    Raises:
        InputError: The folder has no graphs, or its files do not fit together.
    """

    name, device = "onnx", "cpu"

    def __init__(self, folder: Path, *, threads: int | None = None) -> None:
        self.config = read_config(folder)
        self.graphs = read_description(folder / GRAPHS_FOLDER)
        if not graphs_fit(self.graphs, self.config):
            raise InputError(f"{folder} has graphs of another network; ppmn export writes them again")
        self.stride: int = self.graphs["stride"]
        sides = self.config.short_side, self.config.long_side
        self.preprocess = Preprocess(*sides, self.graphs["resize_multiple"])
        self.tokenizer = _tokenizer(self._text_folder())
        names = sorted({name for graph in GRAPH_NAMES for name in self.graphs["weights"][graph]})
        self.weights = read_weights(folder, self.config, names)  # sessions use them in place
        self.sessions = {
            name: open_session(
                folder / GRAPHS_FOLDER / f"{name}.onnx",
                {tensor: self.weights[tensor] for tensor in self.graphs["weights"][name]},
                threads,
            )
            for name in GRAPH_NAMES
        }
        self.features = [value.name for value in self.sessions["image"].get_outputs()]
        self.outputs = [value.name for value in self.sessions["phrases"].get_outputs()]

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
        padded = np.zeros((3, *self.padded_size(height, width)), np.float32)
        padded[:, :height, :width] = image
        found = self.sessions["image"].run(None, {"image": padded, "size": np.array([height, width])})
        return dict(zip(self.features, found, strict=True))

    def ground(
        self, features: Mapping[str, NDArray[np.float32]], caption: str, spans: Sequence[Span]
    ) -> RawMaps:
        """The maps of the spans of a caption on the features of one image."""
        tokens = self.tokenize(caption, spans)
        pool, sizes = self.pool(tokens)
        inputs = {"words": self.words(tokens.ids), "pool": pool, **features}
        found = dict(zip(self.outputs, self.sessions["phrases"].run(None, inputs), strict=True))
        return RawMaps(list(found["maps"]), list(found.get("indices", ())), sizes, found.get("presence"))

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
        (vectors,) = self.sessions["text"].run(None, {"ids": np.array(windows, np.int64)})
        return np.asarray(vectors[best, positions])

    def pool(self, tokens: Tokens) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """The weights of the words in each query (M, n), and the number of queries of each phrase."""
        rows = []
        for pieces in tokens.pieces:
            one_hot = np.eye(len(tokens.ids), dtype=np.float32)[list(pieces)]
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
        raise InputError(f"{file} is of version {version}; this ppmn reads version {GRAPHS_VERSION}")
    needed = {"config", "weights", "stride", "multiple", "resize_multiple", "window", "first_id", "last_id"}
    if missing := needed - set(content):
        raise InputError(f"{file} lacks {', '.join(sorted(missing))}; ppmn export writes it again")
    return dict(content)


def open_session(graph: Path, weights: Mapping[str, NDArray[Any]], threads: int | None) -> Any:
    """A session of a graph with its weights, which are not copied."""
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise InputError("onnxruntime is not installed: pip install onnxruntime") from error
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = threads or 0
    try:
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
        return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a damaged graph raises nearly anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{graph} is damaged or does not fit the model ({reason}); ppmn export writes it again"
        ) from error


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
