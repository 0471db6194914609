"""The feature pyramid p2..p5 of a batch, which part of it is valid, and the contract of an image encoder."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.types import Size

Features = Mapping[str, Tensor]  # what the frozen part of an image encoder returns for one image


@dataclass(frozen=True)
class ValidSizes:
    """Height and width of each image's own part of a padded batch of maps; p2 has stride 1, p5 stride 8."""

    sizes: tuple[Size, ...]
    stride: int

    def at(self, stride: int) -> "ValidSizes":
        """The same parts of maps with a finer stride."""
        scale = self.stride // stride
        return ValidSizes(tuple((height * scale, width * scale) for height, width in self.sizes), stride)

    def of(self, maps: Tensor) -> tuple[Size, ...] | None:
        """The sizes, of maps (B, C, H, W) with this stride; None where all of them is valid."""
        own = tuple(maps.shape[-2:])
        return None if all(size == own for size in self.sizes) else self.sizes

    def mask(self, like: Tensor) -> Tensor | None:
        """Ones in the valid part of maps like (B, C, H, W), as (B, 1, H, W); None where all is valid."""
        if self.of(like) is None:
            return None
        height, width = like.shape[-2:]
        size = torch.tensor(self.sizes, device=like.device)  # (B, 2)
        rows = torch.arange(height, device=like.device) < size[:, :1]  # (B, H)
        columns = torch.arange(width, device=like.device) < size[:, 1:]  # (B, W)
        return (rows[:, None, :, None] & columns[:, None, None, :]).to(like.dtype)


@dataclass(frozen=True)
class Pyramid:
    """p2..p5 of a batch; without `valid_sizes` padding counts as image."""

    levels: tuple[Tensor, Tensor, Tensor, Tensor]  # (B, C_v, 8h, 8w) .. (B, C_v, h, w)
    valid_sizes: ValidSizes | None = None  # at p5
    own_tokens: Tensor | None = None  # (B, C_t, 2h, 2w)

    @property
    def tokens(self) -> Tensor:
        """What pointing reads at the stride of p4: the encoder's own tokens, or p4 itself."""
        return self.levels[2] if self.own_tokens is None else self.own_tokens

    @classmethod
    def of(cls, images: Sequence[Sequence[Tensor]]) -> "Pyramid":
        """A batch of single images' levels, (C_v, 8h, 8w) .. (C_v, h, w) each, padded to the largest.

        Own tokens (C_t, 2h, 2w) may follow the four levels.
        """
        sizes = tuple((levels[3].shape[1], levels[3].shape[2]) for levels in images)
        height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
        scales = (8, 4, 2, 1, 2)[: len(images[0])]
        batch: list[list[Tensor]] = [[] for _ in scales]
        for levels, (h, w) in zip(images, sizes, strict=True):
            for level, padded, scale in zip(levels, batch, scales, strict=True):
                border = (0, (width - w) * scale, 0, (height - h) * scale)
                padded.append(fn.pad(level, border) if any(border) else level)
        p2, p3, p4, p5, *tokens = map(torch.stack, batch)
        return cls((p2, p3, p4, p5), ValidSizes(sizes, stride=8), *tokens)

    def float(self) -> "Pyramid":
        """In single precision, whatever the encoder computed in."""
        p2, p3, p4, p5 = (level.float() for level in self.levels)
        tokens = None if self.own_tokens is None else self.own_tokens.float()
        return Pyramid((p2, p3, p4, p5), self.valid_sizes, tokens)

    def mask(self, level: int) -> Tensor | None:
        """Which pixels of a level belong to an image, (B, 1, H, W); None where all of them do."""
        if self.valid_sizes is None:
            return None
        return self.valid_sizes.at(2**level).mask(self.levels[level])

    def sizes(self, level: int) -> Sequence[Size] | None:
        """The size of each image's own part of a level; None where the images fill it."""
        if self.valid_sizes is None:
            return None
        return self.valid_sizes.at(2**level).of(self.levels[level])


class ImageEncoder(Protocol):
    """What a module must offer to be the image encoder of a PPMN.

    `docs/extending.md` shows a small one; `features`, `pyramid`, `frozen_part` and `feature_count` serve
    training with cached features.
    """

    channels: int  # C_v, of p2..p5; a multiple of 32
    token_channels: int  # C_t, of `Pyramid.tokens`
    stride: int  # of p3 and F, in pixels of the resized image
    multiple: int  # an image is resized to sides that are multiples of this

    def padded_size(self, height: int, width: int) -> Size:
        """The size to which a resized image is padded inside the encoder."""
        ...

    def __call__(self, images: Sequence[Tensor]) -> Pyramid:
        """Resized images, uint8 (3, h, w) of any sizes -> their pyramids in one batch."""
        ...

    def features(self, images: Sequence[Tensor]) -> list[Features]:
        """The output of the frozen part for each image, which can be cached."""
        ...

    def pyramid(self, features: Sequence[Features]) -> Pyramid:
        """The trained part: what `features` returned, or what was cached of it -> p2..p5."""
        ...

    def frozen_part(self) -> tuple[nn.Module, str]:
        """The module that `features` runs, and what else decides its output: together the key of a cache."""
        ...

    def feature_count(self, height: int, width: int) -> int:
        """How many numbers `features` returns for a resized image of this size."""
        ...


def group_by_shape(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Indices of tensors that can be stacked."""
    if len(tensors) == 1:  # while a graph is exported, a shape may be a symbol, which is not hashable
        return [[0]]
    groups = defaultdict(list)
    for index, tensor in enumerate(tensors):
        groups[tensor.shape].append(index)
    return list(groups.values())


def of_images(x: Tensor) -> Sequence[Tensor]:
    """The parts of a batch; that of a single image is not copied when a graph runs."""
    return (x.squeeze(0),) if len(x) == 1 else x.unbind()


def group_norm(x: Tensor, norm: nn.GroupNorm, sizes: Sequence[Size] | None) -> Tensor:
    """Group norm of each image's own part, of these sizes; what lies beyond it becomes zero."""
    if sizes is None:
        return norm(x)
    height, width = x.shape[-2:]
    parts = [
        fn.pad(norm(image[None, :, :h, :w]), (0, width - w, 0, height - h))
        for image, (h, w) in zip(x.unbind(), sizes, strict=True)
    ]
    return torch.cat(parts)
