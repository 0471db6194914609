"""Save and load the two-stage baseline: `model.safetensors`, `config.json`, and its tokenizer in `text/`."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoTokenizer

from ppmn.baselines.region_choice import TwoStageGrounder
from ppmn.baselines.two_stage import TwoStage, TwoStageConfig
from ppmn.errors import InputError
from ppmn.files import existing_file, make_folder, replacing
from ppmn.model.folder import CONFIG_FILE, MODEL_FILE, copy_tensors, read_tensors

_TOKENIZER = "text"


def empty_two_stage(config: TwoStageConfig) -> TwoStage:
    """A second stage whose tensors have shapes and no values yet."""
    with torch.device("meta"):
        return TwoStage(config)


def save_two_stage(model: TwoStage, tokenizer: Any, folder: Path) -> None:
    """Write a model folder; `ppmn.baselines` reads it back with `load_two_stage`."""
    make_folder(folder)
    try:
        tokenizer.save_pretrained(folder / _TOKENIZER)
        with replacing(folder / MODEL_FILE) as part:
            save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, part)
        with replacing(folder / CONFIG_FILE) as part:
            model.config.save(part)
    except (OSError, SafetensorError) as error:
        raise InputError(f"the model could not be written to {folder} ({error})") from error


def load_two_stage(folder: Path, device: str = "cpu") -> TwoStageGrounder:
    """Read a model folder; tensors that do not fit are refused by name."""
    file = existing_file(folder / CONFIG_FILE, f"{folder} is not a model folder")
    model = empty_two_stage(TwoStageConfig.load(file))
    copy_tensors(model, read_tensors(folder / MODEL_FILE), str(folder / MODEL_FILE))
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder / _TOKENIZER), trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare exceptions
        raise InputError(f"the tokenizer of {folder} cannot be read ({error})") from error
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device {device} cannot be used ({error})") from error
    return TwoStageGrounder(model, tokenizer)
