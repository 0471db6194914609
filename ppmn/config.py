"""Configurations: frozen, saved as JSON beside the weights; presets are functions."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ppmn.errors import InputError

Wiring = Literal["released", "paper"]
QueryUnit = Literal["word", "phrase"]
Selection = Literal["topk", "maxpool"]
Aggregation = Literal["mca", "mutan", "sk"]
Dice = Literal["squared", "plain"]
SupervisedRounds = Literal["all", "printed"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ImageConfig:
    """The image encoder with its feature pyramid, and the size that photos are brought to."""

    depth: int = 101  # of a ResNet, as are form, norm and width
    form: Literal["detectron2", "torchvision"] = (
        "detectron2"  # where the stride is, how pixels are normalised
    )
    norm: Literal["frozen", "group"] = "frozen"  # "group" trains from nothing
    width: int = 64  # channels of the stem
    channels: int = 256  # C_v, channels of p2..p5
    short: int = 800  # the shorter side is brought to this
    long: int = 1333  # unless the longer would pass this
    kind: Literal["resnet", "dinov2"] = "resnet"
    layers: tuple[int, ...] = (6, 9, 12)  # of DINOv2, whose tokens the pyramid is made from
    tuned: int = 0  # last blocks of DINOv2 that are trained too, at lr_image
    sha256: str = ""  # of the shipped DINOv2 weights, filled when saving
    precision: Precision = "float32"  # of a look; bfloat16 only where the processor has instructions for it

    def __post_init__(self) -> None:
        if self.kind == "dinov2" and not (self.layers and all(1 <= layer <= 12 for layer in self.layers)):
            raise InputError(f"layers is {self.layers}; DINOv2 has 1 to 12, and one is needed")
        if not 0 <= self.tuned <= 12 or (self.tuned and (self.kind != "dinov2" or 12 not in self.layers)):
            raise InputError(f"tuned is {self.tuned}; it may be up to 12 of DINOv2 with its last layer, or 0")
        for name in ("width", "channels", "short", "long"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"the image encoder's {name} is {getattr(self, name)}; it must be at least 1"
                )


@dataclass(frozen=True)
class TextConfig:
    """The text encoder: `source` is a folder, a hub name, or `package:NAME` for one that pip installed."""

    source: str = "bert-base-uncased"
    sha256: str = ""  # of a package's model.safetensors, filled when saving


@dataclass(frozen=True)
class ModelConfig:
    """One PPMN. The defaults are the released network."""

    wiring: Wiring = "released"
    image: ImageConfig = field(default_factory=ImageConfig)
    text: TextConfig = field(default_factory=TextConfig)
    channels: int = 256  # C
    heads: int = 8  # D
    rounds: int = 3  # L
    pixels: int = 200  # S, language-compatible pixels a query
    query: QueryUnit = "word"  # one query a word piece, or one a phrase
    selection: Selection = "topk"  # of the blurred map, or adaptive max pooling
    aggregation: Aggregation = "mca"
    dice: Dice = "squared"
    supervised_rounds: SupervisedRounds = "all"  # "printed" leaves out the last map
    count_padding: bool = True  # as the authors do; False: padding changes nothing
    threshold: float = 0.5
    edge: float = 0.0  # of a phrase's highest response, what its mask ends at; 0: the threshold itself
    peak: float = 0.0  # of that response too, what each part of the mask must reach somewhere

    def __post_init__(self) -> None:
        if self.heads < 1 or self.channels < 1 or self.channels % self.heads or self.channels % 32:
            raise InputError(
                f"channels is {self.channels}; it must be a multiple of 32 and of heads = {self.heads}"
            )
        if self.image.channels % 32:
            raise InputError(
                f"the image encoder's channels is {self.image.channels}; a multiple of 32 is needed"
            )
        for name in ("threshold", "edge", "peak"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if self.edge and (self.edge == 1 or self.threshold in (0, 1)):
            raise InputError(
                f"edge is {self.edge} and threshold {self.threshold}; both must lie inside of 0 and 1"
            )
        for name in ("rounds", "pixels"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.supervised_rounds == "printed" and self.rounds == 0:
            raise InputError("supervised_rounds is printed and rounds is 0: the printed sum would be empty")

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> "ModelConfig":
        """Read a saved configuration; unknown fields and unknown values are refused by name."""
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(f"{file.parent} is not a model folder: {file.name} is missing") from error
        except OSError as error:
            raise InputError(f"{file} cannot be read ({error.strerror})") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file} is not JSON ({error})") from error
        return from_dict(cls, raw, str(file))


def released() -> ModelConfig:
    """What the authors' code computes."""
    return ModelConfig()


def paper() -> ModelConfig:
    """The printed equations."""
    return ModelConfig(wiring="paper", query="phrase", selection="maxpool", dice="plain", count_padding=False)


def dagger() -> ModelConfig:
    """The paper's dagger: a ResNet that knows ImageNet only, to be trained end to end."""
    return ModelConfig(image=ImageConfig(form="torchvision"), count_padding=False)


def from_dict(kind: type, raw: Any, where: str) -> Any:
    """A frozen dataclass from plain JSON, checked field by field."""
    if not isinstance(raw, dict):
        raise InputError(f"{where} holds {type(raw).__name__} where {kind.__name__} was expected")
    known = {f.name: f for f in fields(kind)}
    unknown = sorted(set(raw) - set(known))
    if unknown:
        raise InputError(f"{where} has unknown fields for {kind.__name__}: {', '.join(unknown)}")
    values = {name: checked(known[name].type, value, f"{where}, {name}") for name, value in raw.items()}
    return kind(**values)


def checked(kind: Any, value: Any, where: str) -> Any:
    if hasattr(kind, "__dataclass_fields__"):
        return from_dict(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple) or not all(type(v) is get_args(kind)[0] for v in value):
            raise InputError(f"{where} is {value!r}; it must be a list of {get_args(kind)[0].__name__}")
        return tuple(value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise InputError(f"{where} is {value!r}; it must be one of {', '.join(map(str, get_args(kind)))}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and type(value) is not kind:
        raise InputError(f"{where} is {value!r}; it must be {kind.__name__}")
    return value
