"""ONNX export: an image graph and a phrase graph, for images of any size and any number of phrases.

`image.onnx` encodes an image; `phrases.onnx` takes the encoded image and the query vectors of the text
encoder, and can be run for any number of captions. `onnx.json` describes inputs and outputs.
"""

import contextlib
import io
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppmn.config import ResNetConfig
from ppmn.errors import InputError
from ppmn.files import make_folder, replacing, write_json
from ppmn.model.network import PPMN, PixelFeatures

_OPSET = 20


class ImageGraph(nn.Module):
    """A padded image -> the pixel features of the L + 1 matchings."""

    mean: Tensor

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.encoder, self.head = model.image_encoder, model.head
        mean = getattr(self.encoder, "mean", torch.zeros(3, 1, 1))
        config = model.config.image
        flips = isinstance(config, ResNetConfig) and config.form == "detectron2"
        self.register_buffer("mean", mean.flip(0) if flips else mean.clone())  # RGB

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """`image` (3, H, W) is RGB, 0..255; its upper left `size` (h, w) counts, the rest is padding."""
        rows = torch.arange(image.shape[1], device=image.device) < size[0]
        columns = torch.arange(image.shape[2], device=image.device) < size[1]
        inside = rows[:, None] & columns  # (H, W)
        padded = torch.where(inside, image, self.mean)  # zero after normalisation, as the encoder pads
        return self.head.encode(self.encoder([padded])).rounds  # L + 1 of (1, C, H/stride, W/stride)


class PhraseGraph(nn.Module):
    """Query vectors and pixel features -> raw maps and compatible pixels of every round."""

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.head = model.head

    def forward(self, vectors: Tensor, pixels: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        maps = self.head.ground(PixelFeatures(pixels), vectors, [vectors.shape[0]])
        H = torch.stack(maps.H)  # (L + 1, M, H, W)
        return (H, torch.stack(maps.indices)) if maps.indices else (H,)  # (L, M, S)


def export_onnx(model: PPMN, folder: Path) -> list[Path]:
    """Write both graphs and their description to a folder; returns the files."""
    if model.config.selection == "maxpool" and model.config.pixels and model.config.rounds:
        raise InputError(
            "selection is maxpool, whose windows ONNX cannot size by the image; only topk is exported"
        )
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError("the ONNX packages are not installed: pip install 'ppmn[onnx]'") from error
    make_folder(folder)
    files = [folder / "image.onnx", folder / "phrases.onnx", folder / "onnx.json"]
    model = model.cpu().eval()
    pixels = export_image(model, files[0])
    export_phrases(model, pixels, files[1])
    write_json(files[2], _description(model), indent=2)
    return files


def export_image(model: PPMN, file: Path) -> tuple[Tensor, ...]:
    """Write the image graph; returns the pixel features of the image it was traced with."""
    multiple, graph = model.image_encoder.padded_size(1, 1)[0], ImageGraph(model)
    image = torch.rand(3, 6 * multiple, 7 * multiple) * 255
    size = torch.tensor([5 * multiple, 6 * multiple])
    rows, columns = torch.export.Dim("rows", min=1), torch.export.Dim("columns", min=1)
    shapes = {"image": {1: multiple * rows, 2: multiple * columns}, "size": None}
    _write_graph(graph, (image, size), shapes, (["image", "size"], _feature_names(model)), file)
    with torch.no_grad():
        return graph(image, size)


def export_phrases(model: PPMN, pixels: tuple[Tensor, ...], file: Path) -> None:
    """Write the phrase graph."""
    queries, height, width = (torch.export.Dim(name, min=1) for name in ("queries", "height", "width"))
    shapes = {"vectors": {0: queries}, "pixels": tuple({2: height, 3: width} for _ in pixels)}
    inputs = (torch.randn(5, model.text_encoder.channels), pixels)
    outputs = ["maps", "indices"] if model.config.rounds and model.config.pixels else ["maps"]
    _write_graph(PhraseGraph(model), inputs, shapes, (["vectors", *_feature_names(model)], outputs), file)


def _feature_names(model: PPMN) -> list[str]:
    return [f"pixels_{index}" for index in range(model.config.rounds + 1)]


def _write_graph(
    graph: nn.Module,
    inputs: tuple[Any, ...],
    shapes: dict[str, Any],
    names: tuple[list[str], list[str]],
    file: Path,
) -> None:
    """Write one graph to one file; what the exporter prints is dropped."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.enable_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph.eval(),
            inputs,
            input_names=names[0],
            output_names=names[1],
            dynamic_shapes=shapes,
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    free = sum(
        not isinstance(dim, int) for tensor in program.model.graph.inputs for dim in tensor.shape or ()
    )
    expected = sum(len(dims) for shape in shapes.values() for dims in _dims(shape))
    if free != expected:  # the exporter falls back to fixed sizes silently
        raise RuntimeError(f"{file.name} has {free} dynamic sizes, not {expected}: tracing fixed some")
    with replacing(file) as part:
        program.save(part)


def _dims(shape: Any) -> tuple[dict[int, Any], ...]:
    return shape if isinstance(shape, tuple) else (shape or {},)


def _description(model: PPMN) -> dict[str, Any]:
    config, multiple = model.config, model.image_encoder.padded_size(1, 1)[0]
    return {
        "image": f"float32 (3, H, W), RGB from 0 to 255; H and W are multiples of {multiple}; the image is "
        f"in the upper left, resized to a shorter side of {config.short_side}, but a longer side of at most "
        f"{config.long_side}; the rest is padding of any value",
        "size": "int64 (2,), height and width of the resized image without padding",
        "vectors": f"float32 (M, {model.text_encoder.channels}), one query per "
        + ("word piece" if config.query == "word" else "phrase"),
        "maps": "float32 (rounds + 1, M, H, W), logits; the sigmoid of the last map is the response, before "
        "the post-processing by relative_threshold and hysteresis_peak of the configuration",
        "indices": "int64 (rounds, M, S), flat map indices of the pixels that each round attends to",
        "multiple": multiple,
        "stride": model.image_encoder.stride,
        "config": asdict(config),
    }
