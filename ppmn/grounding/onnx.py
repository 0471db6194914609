"""ONNX: the image side and the phrase side as two graphs, for any photo size and any number of phrases.

`image.onnx` looks at a photo once; `phrases.onnx` takes what it saw and the text encoder's query vectors,
and may be run for any number of captions. `onnx.json` says what goes in and what comes out.
"""

import contextlib
import io
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppmn.config import ResNetConfig
from ppmn.errors import InputError
from ppmn.files import replacing
from ppmn.model.network import PPMN, PixelFeatures

OPSET = 20


class ImageSide(nn.Module):
    """A padded photo -> the pixels that each of the L + 1 matchings uses."""

    mean: Tensor

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.encoder, self.head = model.image_encoder, model.head
        mean = getattr(self.encoder, "mean", torch.zeros(3, 1, 1))
        config = model.config.image
        flips = isinstance(config, ResNetConfig) and config.form == "detectron2"
        self.register_buffer("mean", mean.flip(0) if flips else mean.clone())  # RGB

    def forward(self, photo: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """`photo` (3, H, W), RGB 0..255, its upper left `size` (h, w) the photo and the rest anything."""
        rows = torch.arange(photo.shape[1], device=photo.device) < size[0]
        columns = torch.arange(photo.shape[2], device=photo.device) < size[1]
        inside = rows[:, None] & columns  # (H, W)
        padded = torch.where(inside, photo, self.mean)  # normalised this is nought, as the encoder pads
        return self.head.encode(self.encoder([padded])).rounds  # L + 1 of (1, C, H/stride, W/stride)


class PhraseSide(nn.Module):
    """Query vectors and a photo's pixels -> raw maps and compatible pixels of every round."""

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.head = model.head

    def forward(self, vectors: Tensor, pixels: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        maps = self.head.ground(PixelFeatures(pixels), vectors, [vectors.shape[0]])
        H = torch.stack(maps.H)  # (L + 1, M, H, W)
        return (H, torch.stack(maps.indices)) if maps.indices else (H,)  # (L, M, S)


def export_onnx(model: PPMN, folder: Path) -> list[Path]:
    """Write both graphs and their description; returns the files."""
    if model.config.selection == "maxpool" and model.config.pixels and model.config.rounds:
        raise InputError(
            "selection is maxpool, whose cells ONNX cannot size by the photo; only topk is exported"
        )
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError("the ONNX packages are not installed: pip install 'ppmn[onnx]'") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror})") from error
    files = [folder / "image.onnx", folder / "phrases.onnx", folder / "onnx.json"]
    model = model.cpu().eval()
    pixels = export_image(model, files[0])
    export_phrases(model, pixels, files[1])
    with replacing(files[2]) as part:
        part.write_text(json.dumps(_description(model), indent=2) + "\n", encoding="utf-8")
    return files


def export_image(model: PPMN, file: Path) -> tuple[Tensor, ...]:
    """Write the image side; returns the pixels of the photo it was traced with."""
    cell, side = model.image_encoder.padded_size(1, 1)[0], ImageSide(model)
    photo, size = torch.rand(3, 6 * cell, 7 * cell) * 255, torch.tensor([5 * cell, 6 * cell])
    rows, columns = torch.export.Dim("rows", min=1), torch.export.Dim("columns", min=1)
    shapes = {"photo": {1: cell * rows, 2: cell * columns}, "size": None}
    _write(side, (photo, size), shapes, (["photo", "size"], _names(model)), file)
    with torch.no_grad():
        return side(photo, size)


def export_phrases(model: PPMN, pixels: tuple[Tensor, ...], file: Path) -> None:
    """Write the phrase side."""
    queries, height, width = (torch.export.Dim(name, min=1) for name in ("queries", "height", "width"))
    shapes = {"vectors": {0: queries}, "pixels": tuple({2: height, 3: width} for _ in pixels)}
    inputs = (torch.randn(5, model.text_encoder.channels), pixels)
    outputs = ["maps", "indices"] if model.config.rounds and model.config.pixels else ["maps"]
    _write(PhraseSide(model), inputs, shapes, (["vectors", *_names(model)], outputs), file)


def _names(model: PPMN) -> list[str]:
    return [f"pixels_{index}" for index in range(model.config.rounds + 1)]


def _write(
    side: nn.Module,
    inputs: tuple[Any, ...],
    shapes: dict[str, Any],
    names: tuple[list[str], list[str]],
    file: Path,
) -> None:
    """One graph in one file, the exporter's own talk left out."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.enable_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            side.eval(),
            inputs,
            input_names=names[0],
            output_names=names[1],
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    free = sum(
        not isinstance(dim, int) for tensor in program.model.graph.inputs for dim in tensor.shape or ()
    )
    wanted = sum(len(dims) for shape in shapes.values() for dims in _each(shape))
    if free != wanted:  # the exporter falls back to fixed sizes without a word
        raise RuntimeError(
            f"{file.name} would leave {free} sizes free, not {wanted}: one was fixed in tracing"
        )
    with replacing(file) as part:
        program.save(part)


def _each(shape: Any) -> tuple[dict[int, Any], ...]:
    return shape if isinstance(shape, tuple) else (shape or {},)


def _description(model: PPMN) -> dict[str, Any]:
    config, multiple = model.config, model.image_encoder.padded_size(1, 1)[0]
    return {
        "photo": f"float32 (3, H, W), RGB from 0 to 255; H and W multiples of {multiple}, the photo in the "
        f"upper left, its shorter side {config.short_side} unless the longer would pass {config.long_side}",
        "size": "int64 (2,), the photo's own height and width in it",
        "vectors": f"float32 (M, {model.text_encoder.channels}), a query a "
        + ("word piece" if config.query == "word" else "phrase"),
        "maps": "float32 (rounds + 1, M, H, W), raw; a probability is their sigmoid, the last is the answer, "
        "not yet bent to the configuration's edge, nor rid of parts that stay weak by its peak",
        "indices": "int64 (rounds, M, S), flat cells that each round looked at",
        "multiple": multiple,
        "stride": model.image_encoder.stride,
        "config": asdict(config),
    }
