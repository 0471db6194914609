"""Where the cells of maps lie in an image, and a code of these places."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ppmn.model.pyramid import ValidSizes

WAVES = 6  # frequencies of the position code


def centres(batch: int, size: Sequence[int], valid_sizes: ValidSizes | None, like: Tensor) -> Tensor:
    """Centres of the cells of maps of a size, x and y from -1 to 1 over the valid part: (B, h w, 2)."""
    sizes = valid_sizes.sizes if valid_sizes else [size] * batch
    lengths = torch.tensor(sizes, device=like.device, dtype=like.dtype)  # (B, 2)
    y, x = (
        (torch.arange(side, device=like.device) + 0.5) / lengths[:, axis, None] * 2 - 1
        for axis, side in enumerate(size)
    )
    rows, columns = y[:, :, None].expand(-1, -1, size[1]), x[:, None].expand(-1, size[0], -1)
    return torch.stack([columns, rows], -1).flatten(1, 2)


def waves(places: Tensor) -> Tensor:
    """Places and their sines and cosines, (..., 2) -> (..., 2 + 4 waves)."""
    angles = [places * math.pi * 2**k / 2 for k in range(WAVES)]
    return torch.cat([places, *(wave(angle) for angle in angles for wave in (torch.sin, torch.cos))], -1)
