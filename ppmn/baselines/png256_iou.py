"""Protocol png256: the soft IoU of the two-stage baseline's code, on masks that went through 256 x 256."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as fn
from numpy.typing import ArrayLike
from torch import Tensor

from ppmn.errors import InputError
from ppmn.types import Mask, Size

_SIDE = (256, 256)


def png256_iou(regions: Sequence[Mask], truth: ArrayLike) -> float:
    """IoU of a union of regions and a mask, sum(p t) / sum(p + t - p t) in the pixels of the image.

    Each region is resized to 256 x 256 and rounded there; their maximum, and the truth, which is never
    rounded, are resized back. So the regions are needed, not their union, and no other prediction has
    a value by this protocol.

    Args:
        regions: The chosen regions, (H, W) each; none of them gives 0.
        truth: The annotated mask, (H, W).

    Returns:
        A value between 0 and 1; NaN where truth and prediction are both empty.
    """
    true = np.asarray(truth)
    if isinstance(regions, np.ndarray) or any(region.shape != true.shape for region in regions):
        raise InputError(
            f"protocol png256 is defined only for a list of regions of the truth's size {true.shape}"
        )
    size = (true.shape[0], true.shape[1])
    small = [_resized(region, _SIDE).round() for region in regions]
    p = _resized(torch.stack(small).amax(0) if small else torch.zeros(_SIDE), size)
    t = _resized(_resized(true > 0, _SIDE), size)
    union = (p + t - p * t).sum().item()
    return (p * t).sum().item() / union if union else math.nan


def _resized(mask: ArrayLike | Tensor, size: Size) -> Tensor:
    values = torch.as_tensor(mask, dtype=torch.float32)
    return fn.interpolate(values[None, None], size, mode="bilinear", align_corners=False)[0, 0]
