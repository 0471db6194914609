"""The one resize of images, for every encoder and protocol."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppmn.types import Size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Preprocess:
    """Resize by the rule of detectron2's ResizeShortestEdge, then to the nearest multiple."""

    short_side: int  # the shorter side becomes this
    long_side: int  # unless the longer side would exceed this
    multiple: int = 1  # both sides are rounded to multiples of this

    def size(self, height: int, width: int) -> Size:
        """The size (height, width) that an image of this size is resized to."""
        scale = self.short_side / min(height, width)
        resized = (
            (self.short_side, scale * width) if height < width else (scale * height, float(self.short_side))
        )
        scale = min(1.0, self.long_side / max(resized))
        height, width = (int(side * scale + 0.5) for side in resized)
        return self._rounded(height), self._rounded(width)

    def __call__(self, image: Image.Image) -> "Tensor":
        """An RGB image resized, uint8 (3, height, width)."""
        import torch

        return torch.from_numpy(self.resize(image))

    def resize(self, image: Image.Image) -> NDArray[np.uint8]:
        """The same without torch."""
        height, width = self.size(image.height, image.width)
        resized = image.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(resized).transpose(2, 0, 1).copy()

    def _rounded(self, side: int) -> int:
        return max(round(side / self.multiple), 1) * self.multiple
