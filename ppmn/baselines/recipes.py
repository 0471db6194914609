"""Training configurations of the small baselines: the encoders, sizes and recipe of preset `compact`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ppmn.baselines.mcn_method import MCNMethodConfig
from ppmn.baselines.two_stage_method import TwoStageSmallConfig
from ppmn.config import TrainConfig
from ppmn.presets import compact


def mcn_small() -> TrainConfig:
    """MCN on DINOv2 and MiniLM, frozen: things only, one phrase at a time."""
    return _like_compact(MCNMethodConfig, negative_phrases=0)


def two_stage_small() -> TrainConfig:
    """Stage one of the two-stage system; stage two is trained by `model.stage=two` from its folder."""
    return _like_compact(TwoStageSmallConfig, lr=5e-4)


def _like_compact(kind: Any, **recipe: Any) -> TrainConfig:
    config = compact()
    model = config.model
    encoders = {"image": model.image, "text": model.text}
    sizes = {"short_side": model.short_side, "long_side": model.long_side}
    return replace(config, model=kind(**encoders, **sizes), **recipe)


BASELINE_PRESETS: dict[str, Callable[[], TrainConfig]] = {
    "mcn-small": mcn_small,
    "two-stage-small": two_stage_small,
}
