"""PPMN: `Head.forward` reads like section 3 of the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ppmn.config import ModelConfig
from ppmn.model.lcpa import PaperRound, ReleasedRound, compatible_pixels, sample
from ppmn.model.matching import LinearProjection, PixelProjection, match
from ppmn.model.neck import SemanticFPN
from ppmn.model.preprocess import Preprocess
from ppmn.model.pyramid import Features, ImageEncoder, Pyramid, ValidSizes
from ppmn.model.text import Queries, Tokens


@dataclass(frozen=True)
class PixelFeatures:
    """All that the head knows of a batch of photos: the pixels that each of the L + 1 matchings uses."""

    rounds: tuple[Tensor, ...]  # L + 1 of (B, C, H, W)
    valid_sizes: ValidSizes | None = None  # at F; None where padding counts


@dataclass(frozen=True)
class Maps:
    """Raw matching maps of every round and the pixels that led from one to the next."""

    H: list[Tensor]  # L + 1 of (M, H, W)
    indices: list[Tensor]  # L of (M, S), flat


class Head(nn.Module):
    """Neck, matching and LCPA: from a pyramid and query vectors to maps."""

    def __init__(self, channels_v: int, channels_r: int, config: ModelConfig) -> None:
        super().__init__()
        C, L, released = config.channels, config.rounds, config.variant == "released"
        self.config = config
        self.neck = SemanticFPN(channels_v)
        first = PixelProjection if released else LinearProjection
        source = C if released else channels_v  # the released rounds project F^, the paper's project F
        self.project_pixels = nn.ModuleList(
            [first(channels_v, C), *(PixelProjection(source, C) for _ in range(L))]
        )
        self.project_phrases = nn.Linear(channels_r, C, bias=released)
        self.rounds = nn.ModuleList((ReleasedRound if released else PaperRound)(config) for _ in range(L))

    def forward(self, pyramid: Pyramid, phrases: Tensor, counts: Sequence[int]) -> Maps:
        """Maps of all queries: `counts[b]` rows of `phrases` (M, C_r) belong to photo b."""
        return self.ground(self.encode(pyramid), phrases, counts)

    def encode(self, pyramid: Pyramid) -> PixelFeatures:
        """The photo's side, which no phrase changes."""
        mask, valid_sizes = pyramid.mask(1), pyramid.valid_sizes
        F = self.neck(pyramid)  # (B, C_v, H, W)
        first, *later = self.project_pixels
        pixels = first(F, mask)  # eq. 1
        source = pixels if self.config.variant == "released" else F
        rounds = (pixels, *(project(source, mask) for project in later))
        return PixelFeatures(rounds, valid_sizes and valid_sizes.at(stride=2))

    def ground(
        self,
        pixels: PixelFeatures,
        phrases: Tensor,
        counts: Sequence[int],
        given: Sequence[Tensor | None] | None = None,
    ) -> Maps:
        """The phrases' side; `given` indices take the place of selected ones, round by round."""
        R = self.project_phrases(phrases)  # eq. 1, R^0, (M, C)
        H = match(R, pixels.rounds[0], counts)  # eq. 2, H^0
        maps = Maps([H], [])
        for refine, before, F in zip(self.rounds, pixels.rounds, pixels.rounds[1:], strict=False):
            indices, missing = self.select(
                H, counts, pixels.valid_sizes, None if given is None else given[len(maps.H) - 1]
            )
            source = F if self.config.variant == "released" else before
            context = None if indices is None else sample(source, indices, counts)  # H_f, (M, S, C)
            R, projected = refine(R, context, missing)  # R^(l+1)
            H = match(projected, F, counts)  # H^(l+1)
            maps.H.append(H)
            if indices is not None:
                maps.indices.append(indices)
        return maps

    def select(
        self, H: Tensor, counts: Sequence[int], valid_sizes: ValidSizes | None, given: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        if self.config.pixels == 0 or given is not None:
            return given, None
        return compatible_pixels(H, self.config, counts, valid_sizes)


class PPMN(nn.Module):
    """The whole network; the encoders are handed in."""

    def __init__(self, image_encoder: ImageEncoder, text_encoder: Any, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.image_encoder = image_encoder
        self.preprocess = Preprocess(config.short_side, config.long_side, image_encoder.multiple)
        self.text_encoder = text_encoder
        self.head = Head(image_encoder.channels, text_encoder.channels, config)

    def forward(
        self, images: Sequence[Tensor] | Sequence[Features], captions: Sequence[Tokens] | Queries
    ) -> tuple[Maps, Queries]:
        """Resized images and tokenized captions, or what frozen encoders made of them -> maps."""
        cached = isinstance(images[0], Mapping)
        pyramid = self.image_encoder.pyramid(images) if cached else self.image_encoder(images)  # type: ignore[arg-type]
        queries = captions if isinstance(captions, Queries) else self.text_encoder(captions)
        return self.head(pyramid, queries.vectors, queries.counts), queries
