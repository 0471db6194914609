"""Two other ways in which PPMN could tell instances apart, for experiments.ablations."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from ppmn.config import ModelConfig
from ppmn.grounding.methods import METHODS
from ppmn.model.attention import Attention
from ppmn.model.lcpa import compatible_pixels, sample
from ppmn.model.matching import match
from ppmn.model.network import PPMN, Head, Maps, PixelFeatures
from ppmn.model.places import centres
from ppmn.model.pyramid import ImageEncoder, ValidSizes, of_images
from ppmn.model.text import TextEncoder

SHAPE = 5  # numbers that describe a map: its centre x and y, its width and height, its area


@dataclass(frozen=True)
class PhraseAttentionConfig(ModelConfig):
    """PPMN whose phrases attend to each other, knowing place and size of their masks, before every round."""

    method = "ppmn-phrase-attention"


@dataclass(frozen=True)
class OwnMaskConfig(ModelConfig):
    """PPMN that aggregates the mean of the pixels, weighted by a phrase's response, in place of S pixels."""

    method = "ppmn-own-mask"


def inside(h: Tensor, grid: Tensor) -> Tensor:
    """Responses to maps (m, HW), 0 in padding, whose places (HW, 2) lie beyond 1."""
    return h.sigmoid() * (grid.abs() <= 1).all(-1)


def shapes(H: Tensor, counts: Sequence[int], valid_sizes: ValidSizes | None) -> Tensor:
    """Centre, extent and area of the masks of maps (M, H, W), (M, SHAPE)."""
    places = centres(len(counts), H.shape[-2:], valid_sizes, H)  # (B, HW, 2)
    found = []
    for h, grid in zip(H.detach().flatten(1).split(list(counts)), of_images(places), strict=True):
        weight = inside(h, grid)
        share = weight / weight.sum(1, keepdim=True).clamp(min=1e-6)
        centre = share @ grid  # (m, 2)
        extent = (share @ grid.square() - centre.square()).clamp(min=0).sqrt()
        area = weight.sum(1, keepdim=True) / (grid.abs() <= 1).all(-1).sum()
        found.append(torch.cat([centre, extent, area], -1))
    return torch.cat(found)


class OtherHead(Head, ABC):
    """The rounds of PPMN with another context; `aggregate` says which."""

    @abstractmethod
    def aggregate(
        self, number: int, R: Tensor, H: Tensor, pixels: PixelFeatures, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What round `number` refines: queries (M, C), their pixels (M, S, C), and which are missing."""

    def ground(
        self,
        pixels: PixelFeatures,
        phrases: Tensor,
        counts: Sequence[int],
        given: Sequence[Tensor | None] | None = None,
        inside: Tensor | None = None,
        named: Tensor | None = None,
    ) -> Maps:
        R = self.project_phrases(phrases)  # (M, C)
        H = match(R, pixels.rounds[0], counts)  # (M, H, W)
        maps = Maps([H], [])
        for number, refine in enumerate(self.rounds):
            R, projected = refine(*self.aggregate(number, R, H, pixels, counts))
            H = match(projected, pixels.rounds[number + 1], counts)
            maps.H.append(H)
        return maps


class PhraseAttentionHead(OtherHead):
    """A self-attention among the phrases of an image before each round."""

    def __init__(
        self, channels_v: int, channels_r: int, config: ModelConfig, channels_t: int | None = None
    ) -> None:
        super().__init__(channels_v, channels_r, config, channels_t)
        C, L = config.channels, config.rounds
        self.shape = nn.ModuleList(nn.Linear(SHAPE, C) for _ in range(L))
        self.norms = nn.ModuleList(nn.LayerNorm(C) for _ in range(L))
        self.attend = nn.ModuleList(Attention(C, C, C) for _ in range(L))

    def aggregate(
        self, number: int, R: Tensor, H: Tensor, pixels: PixelFeatures, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        x = R + self.shape[number](shapes(H, counts, pixels.valid_sizes))
        attend = cast(Attention, self.attend[number])
        phrases = [rows[None] for rows in self.norms[number](x).split(list(counts))]
        seen = torch.cat([attend(rows, attend.memory(rows))[0] for rows in phrases])
        indices, missing = compatible_pixels(H, self.config, counts, pixels.valid_sizes)
        return x + seen, sample(pixels.rounds[number + 1], indices, counts), missing


class OwnMaskHead(OtherHead):
    """One vector per phrase as its pixels: the mean of all, weighted by its response."""

    def aggregate(
        self, number: int, R: Tensor, H: Tensor, pixels: PixelFeatures, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        columns = of_images(pixels.rounds[number + 1].flatten(2))
        places = of_images(centres(len(counts), H.shape[-2:], pixels.valid_sizes, H))
        pooled = []
        for h, own, grid in zip(H.detach().flatten(1).split(list(counts)), columns, places, strict=True):
            weight = inside(h, grid)
            pooled.append(weight / weight.sum(1, keepdim=True).clamp(min=1e-6) @ own.T)  # (m, C)
        return R, torch.cat(pooled)[:, None], None


class PhraseAttention(PPMN):
    """PPMN with a `PhraseAttentionHead`."""

    config_type: ClassVar[type[ModelConfig]] = PhraseAttentionConfig
    head_type: ClassVar[type[Head]] = PhraseAttentionHead

    def __init__(self, image_encoder: ImageEncoder, text_encoder: TextEncoder, config: ModelConfig) -> None:
        super().__init__(image_encoder, text_encoder, config)
        channels = (image_encoder.channels, text_encoder.channels)
        self.head = self.head_type(*channels, config, image_encoder.token_channels)


class OwnMask(PhraseAttention):
    """PPMN with an `OwnMaskHead`."""

    config_type = OwnMaskConfig
    head_type = OwnMaskHead


for method in (PhraseAttention, OwnMask):
    METHODS[method.config_type.method] = method
