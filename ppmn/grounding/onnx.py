"""ONNX export: graphs of the parts of the network, for images and captions of any size.

`image.onnx` encodes an image, `image_8bit.onnx` does so with linear layers in 8 bits where the model allows
it, `text.onnx` the words of a caption; `phrases.onnx` takes both, and can be run for any number of captions;
`objects.onnx` draws the objects at given places, if the model points. `onnx.json` describes inputs and
outputs. Without weights, as in a model folder, the graphs name the tensors of the folder's safetensors file,
which both runtimes read.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ppmn.errors import InputError
from ppmn.files import make_folder, write_json
from ppmn.grounding.graphs import (
    CompressedTable,
    ImageGraph,
    ObjectGraph,
    PhraseGraph,
    TextGraph,
    feature_names,
    feature_shapes,
    linear_layers_8bit,
    output_names,
    padding_color,
)
from ppmn.grounding.onnx_runtime import DESCRIPTION_FILE, GRAPHS_FOLDER, GRAPHS_VERSION
from ppmn.grounding.runtime import allows_reduced_precision
from ppmn.grounding.trace import Graph, write_graph
from ppmn.model.folder import load_model, read_tensors
from ppmn.model.locate import MODEL_FILE
from ppmn.model.network import PPMN
from ppmn.model.pointing import TOKEN_STRIDE

_WORDS = "text_encoder.bert.embeddings.word_embeddings.weight"
WordTable = tuple[Tensor, Tensor]  # integers (words, C) and scales (words, 1)


def export_onnx(
    model: PPMN, folder: Path, *, weights: bool = True, word_table: WordTable | None = None
) -> list[Path]:
    """Write the graphs and their description to a folder.

    Args:
        model: The network.
        folder: Where to; for a model folder its sub-folder `onnx`.
        weights: Write the weights into the graphs, so that they can be used alone.
        word_table: The table of words as the model's file stores it, if that is in 8 bits.

    Returns:
        The files.

    Raises:
        InputError: The model cannot be exported, a package is missing, or the folder cannot be written.
    """
    if model.config.selection == "maxpool" and model.config.pixels and model.config.rounds:
        raise InputError(
            "selection is maxpool, whose windows ONNX cannot size by the image; only topk is exported"
        )
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError("the ONNX packages are not installed: pip install 'ppmn[onnx-export]'") from error
    make_folder(folder)
    model = model.cpu().eval()
    graphs = {"image": image_graph(model), "text": text_graph(model), "phrases": phrase_graph(model)}
    if model.config.pointing:
        graphs["objects"] = object_graph(model)
    files = {name: folder / f"{name}.onnx" for name in graphs}
    with stored_words(model, word_table):
        names = {name: write_graph(graph, files[name], weights=weights) for name, graph in graphs.items()}
    if allows_reduced_precision(model.config):
        files["image_8bit"] = folder / "image_8bit.onnx"
        with linear_layers_8bit(model):
            names["image_8bit"] = write_graph(graphs["image"], files["image_8bit"], weights=weights)
    description = _description(model) | ({} if weights else {"weights": names})
    write_json(folder / DESCRIPTION_FILE, description, indent=2)
    return [*files.values(), folder / DESCRIPTION_FILE]


def add_graphs(folder: Path) -> list[Path]:
    """Write the graphs of a model folder into it, so that it runs on ONNX Runtime; returns the files."""
    model = load_model(folder)
    stored = read_tensors(folder / MODEL_FILE)
    table, scale = stored.get(_WORDS), stored.get(f"{_WORDS}.scale")
    words = None if table is None or scale is None else (table, scale)
    return export_onnx(model, folder / GRAPHS_FOLDER, weights=False, word_table=words)


def image_graph(model: PPMN) -> Graph:
    """Image -> features."""
    multiple = model.image_encoder.padded_size(1, 1)[0]
    image = torch.rand(3, 4 * multiple, 5 * multiple) * 255
    rows, columns = torch.export.Dim("rows", min=1), torch.export.Dim("columns", min=1)
    shapes = {"image": {1: multiple * rows, 2: multiple * columns}}
    return Graph(ImageGraph(model), (image,), shapes, ["image"], feature_names(model.config))


def text_graph(model: PPMN) -> Graph:
    """Word pieces -> vectors."""
    windows, length = torch.export.Dim("windows", min=1), torch.export.Dim("pieces", min=1)
    ids = torch.ones(3, 7, dtype=torch.long)
    return Graph(TextGraph(model), (ids,), {"ids": {0: windows, 1: length}}, ["ids"], ["vectors"])


def phrase_graph(model: PPMN) -> Graph:
    """Vectors and features -> maps."""
    config = model.config
    pieces, queries = torch.export.Dim("pieces", min=1), torch.export.Dim("queries", min=1)
    shapes = {"words": {0: pieces}, "pool": {0: queries, 1: pieces}, "features": _feature_sizes(model)}
    inputs = (torch.randn(7, model.text_encoder.channels), torch.rand(5, 7), _features(model))
    names = ["words", "pool", *feature_names(config)]
    return Graph(PhraseGraph(model), inputs, shapes, names, output_names(config))


def object_graph(model: PPMN) -> Graph:
    """Tokens and features -> maps of objects."""
    shapes = {"points": {0: torch.export.Dim("points", min=1)}, "features": _feature_sizes(model)}
    inputs = (torch.tensor([3, 1, 2]), _features(model))
    names = ["points", *feature_names(model.config)]
    return Graph(ObjectGraph(model), inputs, shapes, names, ["objects"])


def _features(model: PPMN) -> tuple[Tensor, ...]:
    image = image_graph(model)
    with torch.no_grad():
        found: tuple[Tensor, ...] = image.module(*image.inputs)
    return found


def _feature_sizes(model: PPMN) -> tuple[dict[int, Any], ...]:
    height, width, tokens = (torch.export.Dim(name, min=1) for name in ("height", "width", "tokens"))
    return feature_shapes(model.config, height, width, tokens)


@contextlib.contextmanager
def stored_words(model: PPMN, table: WordTable | None) -> Iterator[None]:
    """The model with the table of words as its file stores it."""
    embeddings = model.text_encoder.bert.embeddings
    full = embeddings.word_embeddings
    if table is not None:
        embeddings.word_embeddings = CompressedTable(*table)
    try:
        yield
    finally:
        embeddings.word_embeddings = full


def _description(model: PPMN) -> dict[str, Any]:
    config, multiple = model.config, model.image_encoder.padded_size(1, 1)[0]
    return {
        "version": GRAPHS_VERSION,
        "image": f"float32 (3, H, W), RGB from 0 to 255; H and W are multiples of {multiple}; the image is "
        f"in the upper left, resized to a shorter side of {config.short_side}, but a longer side of at most "
        f"{config.long_side}; the rest is padding_color",
        "ids": f"int64 (windows, n), at most {model.text_encoder.window} word pieces between first_id and "
        "last_id",
        "vectors": "float32 (windows, n, C), one vector per word piece",
        "words": "float32 (n, C), the vectors of a caption without the first and last",
        "pool": "float32 (M, n), the weights of the words in each query; one query per "
        + ("word piece" if config.query == "word" else "phrase, the mean of its words"),
        "maps": "float32 (rounds + 1, M, H, W), logits; the sigmoid of the last map is the response, before "
        "the post-processing by relative_threshold and hysteresis_peak of the configuration",
        "indices": "int64 (rounds, M, S), flat map indices of the pixels that each round attends to",
        "presence": "float32 (M,), the logit that what a query names is in the image, if the model says so",
        "certainty": "float32 (M,), how much of what a query points at lies in its drawn map, if it points",
        "somewhere": "float32 (M,), the logit that a query points into the image, if presence has layers of "
        "its own",
        "points": "int64 (n,), flat indices of tokens; each is token_stride cells of a map wide and high",
        "objects": "float32 (n, H, W), logits of the objects at these tokens",
        "resize_multiple": model.image_encoder.multiple,
        "multiple": multiple,
        "padding_color": padding_color(model),
        "stride": model.image_encoder.stride,
        "token_stride": TOKEN_STRIDE,
        "window": model.text_encoder.window,
        "first_id": model.text_encoder.tokenizer.cls_token_id,
        "last_id": model.text_encoder.tokenizer.sep_token_id,
        "config": {name: value for name, value in asdict(config).items() if name != "text"},
    }
