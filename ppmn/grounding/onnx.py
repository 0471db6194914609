"""ONNX export: an image graph, a text graph and a phrase graph, for images and captions of any size.

`image.onnx` encodes an image, `text.onnx` the words of a caption; `phrases.onnx` takes both, and can be run
for any number of captions. `onnx.json` describes inputs and outputs. Without weights, as in a model folder,
the graphs name the tensors of the folder's safetensors file, which both runtimes read.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppmn.errors import InputError
from ppmn.files import make_folder, replacing, write_json
from ppmn.grounding.graphs import (
    CompressedTable,
    ImageGraph,
    PhraseGraph,
    TextGraph,
    feature_names,
    feature_shapes,
    output_names,
)
from ppmn.grounding.onnx_runtime import DESCRIPTION_FILE, GRAPH_NAMES, GRAPHS_FOLDER, GRAPHS_VERSION
from ppmn.model.folder import load_model, read_tensors
from ppmn.model.locate import MODEL_FILE
from ppmn.model.network import PPMN

_OPSET = 20
_WORDS = "text_encoder.bert.embeddings.word_embeddings.weight"
_CONTRIB = "com.microsoft"  # operators of ONNX Runtime
WordTable = tuple[Tensor, Tensor]  # integers (words, C) and scales (words, 1)


@dataclass(frozen=True)
class Graph:
    """A part of the network with what it is traced with."""

    module: nn.Module
    inputs: tuple[Any, ...]
    shapes: dict[str, Any]  # sizes that may differ, of each input
    input_names: list[str]
    output_names: list[str]


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
    graphs = image_graph(model), text_graph(model), phrase_graph(model)
    files = [folder / f"{name}.onnx" for name in GRAPH_NAMES]
    with stored_words(model, word_table):
        names = [write_graph(*pair, weights=weights) for pair in zip(graphs, files, strict=True)]
    description = _description(model)
    if not weights:
        description["weights"] = dict(zip(GRAPH_NAMES, names, strict=True))
    write_json(folder / DESCRIPTION_FILE, description, indent=2)
    return [*files, folder / DESCRIPTION_FILE]


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
    size = torch.tensor([3 * multiple, 4 * multiple])
    rows, columns = torch.export.Dim("rows", min=1), torch.export.Dim("columns", min=1)
    shapes = {"image": {1: multiple * rows, 2: multiple * columns}, "size": None}
    return Graph(ImageGraph(model), (image, size), shapes, ["image", "size"], feature_names(model.config))


def text_graph(model: PPMN) -> Graph:
    """Word pieces -> vectors."""
    windows, length = torch.export.Dim("windows", min=1), torch.export.Dim("pieces", min=1)
    ids = torch.ones(3, 7, dtype=torch.long)
    return Graph(TextGraph(model), (ids,), {"ids": {0: windows, 1: length}}, ["ids"], ["vectors"])


def phrase_graph(model: PPMN) -> Graph:
    """Vectors and features -> maps."""
    config = model.config
    image = image_graph(model)
    with torch.no_grad():
        features = image.module(*image.inputs)
    pieces, queries, height, width, tokens = (
        torch.export.Dim(name, min=1) for name in ("pieces", "queries", "height", "width", "tokens")
    )
    sizes = feature_shapes(config, height, width, tokens)
    shapes = {"words": {0: pieces}, "pool": {0: queries, 1: pieces}, "features": sizes}
    inputs = (torch.randn(7, model.text_encoder.channels), torch.rand(5, 7), features)
    names = ["words", "pool", *feature_names(config)]
    return Graph(PhraseGraph(model), inputs, shapes, names, output_names(config))


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


def write_graph(graph: Graph, file: Path, *, weights: bool = True) -> list[str]:
    """Write one graph to one file; returns the names of its weights."""
    import onnx

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.enable_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph.module.eval(),
            graph.inputs,
            input_names=graph.input_names,
            output_names=graph.output_names,
            dynamic_shapes=graph.shapes,
            custom_translation_table={torch.ops.aten.scaled_dot_product_attention.default: _attention},
            opset_version=_OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
        assert program is not None
        tensors = _weights_as_inputs(program, graph)
        program.optimize()
    proto = program.model_proto
    _check_sizes(proto, graph, file)
    _inputs_as_weights(proto.graph, tensors, weights)
    for node in proto.graph.node:
        del node.metadata_props[:]
    del proto.graph.value_info[:]
    with replacing(file) as part:
        onnx.save(proto, part)
    return list(tensors)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention (B, heads, n, d) by ONNX Runtime's own operator, which never holds all the scores.

    A mask is left out: a graph takes one image and whole windows of words, so nothing in it is padding.
    """
    from onnxscript import opset20 as op

    assert not is_causal
    heads = query.shape[1]
    rows = [op.Transpose(x, perm=[0, 2, 1, 3]) for x in (query, key, value)]
    rows = [op.Reshape(x, op.Constant(value_ints=[0, 0, -1])) for x in rows]  # (B, n, heads d)
    options = {} if scale is None else {"scale": float(scale)}
    attended = _fused_operator()(*rows, num_heads=heads, **options)
    split = op.Reshape(attended, op.Constant(value_ints=[0, 0, heads, -1]))
    return op.Transpose(split, perm=[0, 2, 1, 3])


def _fused_operator() -> Any:
    """MultiHeadAttention, an operator of ONNX Runtime that ONNX does not know, with the parts used here."""
    from onnx.defs import OpSchema
    from onnxscript.values import Op, Opset

    parameters = [OpSchema.FormalParameter(name, "T") for name in ("query", "key", "value", "output")]
    attributes = [
        OpSchema.Attribute("num_heads", OpSchema.AttrType.INT),
        OpSchema.Attribute("scale", OpSchema.AttrType.FLOAT, required=False),
    ]
    schema = OpSchema(
        "MultiHeadAttention",
        _CONTRIB,
        1,
        inputs=parameters[:3],
        outputs=parameters[3:],
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=attributes,
    )
    return Op(Opset(_CONTRIB, 1), schema.name, schema)


def _weights_as_inputs(program: Any, graph: Graph) -> dict[str, Tensor]:
    """Make weights inputs, so that nothing computed from them becomes part of the graph; returns them."""
    ours = graph.module.state_dict()
    tensors = {}
    inner = program.model.graph
    for name, value in list(inner.initializers.items()):
        if name in ours:
            del inner.initializers[name]
            value.const_value = None
            value.name = name.replace("word_embeddings.scale", "word_embeddings.weight.scale")
            if value.uses():
                inner.inputs.append(value)
                tensors[value.name] = ours[name]
    return tensors


def _inputs_as_weights(graph: Any, tensors: dict[str, Tensor], weights: bool) -> None:
    """The weights as initializers again: with their values, or by the names of a model folder."""
    import onnx

    own = [value for value in graph.input if value.name not in tensors]
    del graph.input[:]
    graph.input.extend(own)
    for name, tensor in tensors.items():
        array = tensor.detach().contiguous().numpy()
        proto = onnx.numpy_helper.from_array(array, name)
        if not weights:
            proto.ClearField("raw_data")
            proto.data_location = onnx.TensorProto.EXTERNAL
            proto.external_data.add(key="location", value="model.safetensors")
        graph.initializer.append(proto)


def _check_sizes(proto: Any, graph: Graph, file: Path) -> None:
    """The exporter falls back to fixed sizes silently."""
    inputs = [value for value in proto.graph.input if value.name in graph.input_names]
    free = sum(dim.HasField("dim_param") for value in inputs for dim in value.type.tensor_type.shape.dim)
    expected = sum(len(dims) for shape in graph.shapes.values() for dims in _dims(shape))
    if free != expected:
        raise RuntimeError(f"{file.name} has {free} dynamic sizes, not {expected}: tracing fixed some")


def _dims(shape: Any) -> tuple[dict[int, Any], ...]:
    return shape if isinstance(shape, tuple) else (shape or {},)


def _description(model: PPMN) -> dict[str, Any]:
    config, multiple = model.config, model.image_encoder.padded_size(1, 1)[0]
    return {
        "version": GRAPHS_VERSION,
        "image": f"float32 (3, H, W), RGB from 0 to 255; H and W are multiples of {multiple}; the image is "
        f"in the upper left, resized to a shorter side of {config.short_side}, but a longer side of at most "
        f"{config.long_side}; the rest is padding of any value",
        "size": "int64 (2,), height and width of the resized image without padding",
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
        "resize_multiple": model.image_encoder.multiple,
        "multiple": multiple,
        "stride": model.image_encoder.stride,
        "window": model.text_encoder.window,
        "first_id": model.text_encoder.tokenizer.cls_token_id,
        "last_id": model.text_encoder.tokenizer.sep_token_id,
        "config": {name: value for name, value in asdict(config).items() if name != "text"},
    }
