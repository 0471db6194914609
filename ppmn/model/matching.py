"""Pixel-phrase matching (section 3.2): response maps as products of pixels and queries in one space."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ppmn.model.pyramid import group_norm, of_images
from ppmn.types import Size


def match(R: Tensor, F: Tensor, counts: Sequence[int]) -> Tensor:
    """Raw matching maps of all queries: `counts[b]` rows of R belong to image b."""
    rows, pixels = R.split(list(counts)), pixel_columns(F)
    H = torch.cat([r @ f for r, f in zip(rows, pixels, strict=True)])  # eq. 2, (M, HW)
    return H.view(-1, *F.shape[-2:])


def pixel_columns(F: Tensor) -> list[Tensor]:
    """The pixels of each image as columns, (C, HW), in the order in which they lie in memory."""
    if channels_last(F):
        return [pixels.T for pixels in of_images(F.permute(0, 2, 3, 1).flatten(1, 2))]
    return list(of_images(F.flatten(2)))


def channels_last(F: Tensor) -> bool:
    """Whether the channels of a pixel lie side by side in memory."""
    return F.shape[1] > 1 and F.stride(1) == 1


class PixelProjection(nn.Module):
    """1x1 convolution, group norm, ReLU: every projection of pixels but the paper's first."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.norm = nn.GroupNorm(32, channels)

    def forward(self, F: Tensor, sizes: Sequence[Size] | None) -> Tensor:
        return group_norm(self.conv(F), self.norm, sizes).relu_()


class LinearProjection(nn.Module):
    """F W1: the paper's first projection of pixels."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 1, bias=False)

    def forward(self, F: Tensor, sizes: Sequence[Size] | None) -> Tensor:
        return self.conv(F)
