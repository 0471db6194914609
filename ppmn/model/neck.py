"""The semantic FPN neck (section 3.1): p2..p5 -> one feature map F at the stride of p3."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.model.pyramid import Pyramid, ValidSizes, group_norm
from ppmn.types import Size


def sine_position(level: Tensor, valid_sizes: ValidSizes | None) -> Tensor:
    """The sinusoidal positional encoding, y before x, each axis normalised to 2 pi over the valid size."""
    batch, channels, height, width = level.shape
    half, device = channels // 2, level.device
    sizes = valid_sizes.sizes if valid_sizes else [(height, width)] * batch
    size = torch.tensor(sizes, device=device, dtype=torch.float32)  # (B, 2)
    period = 10_000 ** (2 * (torch.arange(half, device=device) // 2) / half)  # (C/2,)

    def axis(length: int, valid: Tensor) -> Tensor:
        steps = torch.arange(1, length + 1, device=device) / (valid[:, None] + 1e-6) * 2 * math.pi
        angle = steps[..., None] / period  # (B, length, C/2)
        return torch.stack([angle[..., 0::2].sin(), angle[..., 1::2].cos()], -1).flatten(-2)

    y = axis(height, size[:, 0])[:, :, None].expand(-1, -1, width, -1)
    x = axis(width, size[:, 1])[:, None].expand(-1, height, -1, -1)
    return torch.cat([y, x], -1).permute(0, 3, 1, 2).to(level.dtype)  # (B, C, H, W)


class ConvNorm(nn.Module):
    """3x3 convolution, after 2x nearest upsampling where `doubles`; group norm; ReLU."""

    def __init__(self, channels: int, stride: int = 1, doubles: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride, padding=1)
        self.norm = nn.GroupNorm(32, channels)
        self.doubles = doubles
        self.step = stride - 1 - doubles  # levels of the pyramid that the output is coarser by

    def forward(self, x: Tensor, sizes: Sequence[Size] | None) -> Tensor:
        """Padding of x is zero, and stays so; `sizes` are those of the output."""
        if not self.doubles:
            x = self.conv(x)
        elif torch.is_grad_enabled():
            x = self.conv(fn.interpolate(x, scale_factor=2.0))
        else:
            x = self.doubled(x)
        return group_norm(x, self.norm, sizes).relu_()

    def doubled(self, x: Tensor) -> Tensor:
        """The convolution of the upsampled map as four 2x2 convolutions of the map, one per output phase."""
        batch, channels, height, width = x.shape
        fold = x.new_tensor([[[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]])  # phase, tap of 2, tap of 3
        taps = torch.einsum("oiyx,pay,qbx->pqoiab", self.conv.weight, fold, fold)  # (2, 2, C, C, 2, 2)
        out = x.new_empty(batch, channels, height, 2, width, 2)
        for p in range(2):
            for q in range(2):
                border = (1 - q, q, 1 - p, p)  # even phases reach back by a pixel, odd ones ahead
                out[:, :, :, p, :, q] = fn.conv2d(fn.pad(x, border), taps[p, q], self.conv.bias)
        return out.view(batch, channels, 2 * height, 2 * width)


class SemanticFPN(nn.Module):
    """Resample each level to the stride of p3 by convolutions, sum them and merge."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            [
                nn.ModuleList([ConvNorm(channels, stride=2)]),
                nn.ModuleList([ConvNorm(channels)]),
                nn.ModuleList([ConvNorm(channels), ConvNorm(channels, doubles=True)]),
                nn.ModuleList([ConvNorm(channels), *(ConvNorm(channels, doubles=True) for _ in range(2))]),
            ]
        )
        self.merge = nn.Conv2d(channels, channels, 1)
        self.norm = nn.GroupNorm(32, channels)

    def forward(self, pyramid: Pyramid) -> Tensor:
        sizes = [pyramid.sizes(level) for level in range(4)]
        summed: Tensor | None = None
        for index, blocks in enumerate(self.levels):
            x = pyramid.levels[index]  # (B, C_v, H^p, W^p)
            if index == 3:
                x = x + sine_position(x, pyramid.valid_sizes)
            mask, level = pyramid.mask(index), index
            x = x if mask is None else x * mask
            for block in blocks:  # type: ignore[attr-defined]
                level += block.step
                x = block(x, sizes[level])
            summed = x if summed is None else summed + x
        return group_norm(self.merge(summed), self.norm, sizes[1]).relu_()  # F, (B, C_v, H, W)
