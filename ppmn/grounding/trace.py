"""A part of the network traced as an ONNX graph, with its weights or without."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppmn.files import replacing

_OPSET, _IR_VERSION = 20, 10  # as old as the oldest ONNX Runtime that is supported
_CONTRIB = "com.microsoft"  # operators of ONNX Runtime


@dataclass(frozen=True)
class Graph:
    """A part of the network with what it is traced with."""

    module: nn.Module
    inputs: tuple[Any, ...]
    shapes: dict[str, Any]  # sizes that may differ, of each input
    input_names: list[str]
    output_names: list[str]


def write_graph(graph: Graph, file: Path, *, weights: bool = True) -> list[str]:
    """Write one graph to one file; returns the names of its weights."""
    import onnx

    with _quiet(), torch.enable_grad():
        program = torch.onnx.export(
            graph.module.eval(),
            graph.inputs,
            input_names=graph.input_names,
            output_names=graph.output_names,
            dynamic_shapes=graph.shapes,
            custom_translation_table={
                torch.ops.aten.scaled_dot_product_attention.default: _attention,
                torch.ops.ppmn.linear_8bit.default: _linear_8bit,
            },
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
    proto.ir_version = _IR_VERSION
    with replacing(file) as part:
        onnx.save(proto, part)
    return list(tensors)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter prints, logs and warns of."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


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
    if query.shape[2] == key.shape[2]:  # self-attention; a given memory stays as it is
        key, value = _joined_heads(key), _joined_heads(value)
    options = {} if scale is None else {"scale": float(scale)}
    fused = _operator("MultiHeadAttention", "query key value", {"num_heads": "INT", "scale": "FLOAT"})
    attended = fused(_joined_heads(query), key, value, num_heads=heads, **options)
    split = op.Reshape(attended, op.Constant(value_ints=[0, 0, heads, -1]))
    return op.Transpose(split, perm=[0, 2, 1, 3])


def _joined_heads(x: Any) -> Any:
    """(B, heads, n, d) -> (B, n, heads d)."""
    from onnxscript import opset20 as op

    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))


def _linear_8bit(x: Any, weight: Any, scale: Any, bias: Any) -> Any:
    """A linear layer in 8 bits by ONNX Runtime's own operator."""
    operator = _operator("DynamicQuantizeMatMul", "A B b_scale b_zero_point bias", {})
    return operator(x, weight, scale, None, bias)


def _operator(name: str, inputs: str, attributes: dict[str, str]) -> Any:
    """An operator of ONNX Runtime that ONNX does not know, with the parts used here."""
    from onnx.defs import OpSchema
    from onnxscript.values import Op, Opset

    optional = OpSchema.FormalParameterOption.Optional
    schema = OpSchema(
        name,
        _CONTRIB,
        1,
        inputs=[OpSchema.FormalParameter(part, "T", param_option=optional) for part in inputs.split()],
        outputs=[OpSchema.FormalParameter("output", "T")],
        type_constraints=[("T", ["tensor(float)", "tensor(int8)"], "")],
        attributes=[
            OpSchema.Attribute(key, getattr(OpSchema.AttrType, kind), required=False)
            for key, kind in attributes.items()
        ],
    )
    return Op(Opset(_CONTRIB, 1), name, schema)


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
