"""Pixel-phrase matching (section 3.2): response maps as products of pixels and queries in one space."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ppmn.model.pyramid import group_norm


def match(R: Tensor, F: Tensor, counts: Sequence[int]) -> Tensor:
    """Raw matching maps of all queries: `counts[b]` rows of R belong to image b."""
    height, width = F.shape[-2:]
    rows = R.split(list(counts))
    H = torch.cat([r @ f for r, f in zip(rows, F.flatten(2), strict=True)])  # eq. 2, (M, HW)
    return H.view(-1, height, width)


class PixelProjection(nn.Module):
    """1x1 convolution, group norm, ReLU: every projection of pixels but the paper's first."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.norm = nn.GroupNorm(32, channels)

    def forward(self, F: Tensor, mask: Tensor | None) -> Tensor:
        return group_norm(self.conv(F), self.norm, mask).relu_()


class LinearProjection(nn.Module):
    """F W1: the paper's first projection of pixels."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 1, bias=False)

    def forward(self, F: Tensor, mask: Tensor | None) -> Tensor:
        return self.conv(F)
