"""Which images are for training and which for validation: decided by the name of the file alone."""

import hashlib
from typing import Literal

from ppmn.config import TrainConfig
from ppmn.data.panoptic import PanopticImage

SplitPart = Literal["all", "train", "validation"]


def held_out(annotation: PanopticImage, fraction: float) -> bool:
    """Whether an image is for validation: decided by its name, so in all sources that have it."""
    digest = hashlib.sha256(annotation.file.stem.encode()).digest()
    return int.from_bytes(digest[:4], "big") < fraction * 2**32


def in_part(annotation: PanopticImage, part: SplitPart) -> bool:
    """Whether an image is on one side of the split that training uses by default, a tenth for validation."""
    if part == "all":
        return True
    return held_out(annotation, TrainConfig.validation_fraction) == (part == "validation")
