"""Regions as the frozen features of an image, so that stage two is trained on a cache of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ppmn.baselines.region_vectors import ImageRegions, Regions, region_vectors
from ppmn.model.pointing import TOKEN_STRIDE
from ppmn.model.pyramid import Features, Pyramid
from ppmn.types import Size

_USUAL = 20  # regions of an image, about


class RegionEncoder:
    """Stage one of a two-stage method as an `ImageEncoder` whose features are regions.

    Args:
        method: The method; its `encode` makes the regions.
    """

    def __init__(self, method: Any) -> None:
        self.method, encoder = method, method.image_encoder
        self.channels, self.token_channels = encoder.channels, encoder.token_channels
        self.stride, self.multiple = encoder.stride, encoder.multiple

    def padded_size(self, height: int, width: int) -> Size:
        """As the image encoder's."""
        size: Size = self.method.image_encoder.padded_size(height, width)
        return size

    @torch.no_grad()
    def __call__(self, images: Sequence[Tensor]) -> Regions:
        """The regions of each image, found without the others: a batch does not change them."""
        return self.pyramid(self.features(images))

    @torch.no_grad()
    def features(self, images: Sequence[Tensor], tokens: Sequence[Features] | None = None) -> list[Features]:
        """Vectors and numbers of the regions of each image; `tokens` are what its encoder returned."""
        found, encoder = [], self.method.image_encoder
        for own in tokens or encoder.features(images):
            regions: Regions = self.method.encode(encoder.pyramid([own]).float())
            found.append(regions.images[0].features())
        return found

    def pyramid(self, features: Sequence[Features]) -> Regions:
        """What `features` returned, or what was cached of it."""
        images = tuple(ImageRegions.of_features(own) for own in features)
        height, width = (max(image.masks.shape[axis] for image in images) for axis in (1, 2))
        return Regions(images, (height, width))

    def of_segments(self, pyramid: Pyramid, F: Tensor, masks: Sequence[Tensor]) -> Regions:
        """Annotated segments (K, H, W) of each image as its regions, each with score 1."""
        images = []
        for number, own in enumerate(masks):
            height, width = own.shape[1:]
            tokens = pyramid.tokens[number, :, : height // TOKEN_STRIDE, : width // TOKEN_STRIDE]
            pixels = F[number, :, :height, :width].detach()
            vectors = region_vectors(own, tokens.detach(), pixels, torch.ones(len(own), device=F.device))
            images.append(ImageRegions(own.to(F.dtype), vectors))
        return Regions(tuple(images), (F.shape[2], F.shape[3]))

    def frozen_part(self) -> tuple[nn.Module, str]:
        """Both encoder and proposals, and the score that a proposal needs."""
        parts = nn.ModuleList([self.method.image_encoder, self.method.head])
        return parts, f"regions above {self.method.config.min_score} {self.method.config.crossed}"

    def feature_count(self, height: int, width: int) -> int:
        """How many numbers `features` returns, about: the number of regions is not known ahead."""
        pixels = (height // self.stride) * (width // self.stride)
        return _USUAL * (self.channels + self.token_channels + 1) + pixels
