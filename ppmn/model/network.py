"""The pixel-phrase matching network; `Head` follows section 3 of the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ppmn.config import ModelConfig
from ppmn.model.lcpa import PaperRound, ReleasedRound, compatible_pixels, sample
from ppmn.model.matching import LinearProjection, PixelProjection, match
from ppmn.model.neck import SemanticFPN
from ppmn.model.preprocess import Preprocess
from ppmn.model.pyramid import Features, ImageEncoder, Pyramid, ValidSizes
from ppmn.model.text import Queries, TextEncoder, Tokens


@dataclass(frozen=True)
class PixelFeatures:
    """A batch of encoded images: the projected pixels that each of the L + 1 matchings uses."""

    rounds: tuple[Tensor, ...]  # L + 1 of (B, C, H, W)
    valid_sizes: ValidSizes | None = None  # at F; None: padding counts as image


@dataclass(frozen=True)
class Maps:
    """Raw matching maps of every round, and the pixels that each round aggregated."""

    H: list[Tensor]  # L + 1 of (M, H, W)
    indices: list[Tensor]  # H_index, L of (M, S), flat


class Head(nn.Module):
    """Neck, matching and LCPA rounds: from a feature pyramid and query vectors to maps."""

    def __init__(self, channels_v: int, channels_r: int, config: ModelConfig) -> None:
        super().__init__()
        C, L, released = config.channels, config.rounds, config.variant == "released"
        self.config = config
        self.neck = SemanticFPN(channels_v)
        first = PixelProjection if released else LinearProjection
        source = C if released else channels_v  # released: each round projects F^; paper: F
        self.project_pixels = nn.ModuleList(
            [first(channels_v, C), *(PixelProjection(source, C) for _ in range(L))]
        )
        self.project_phrases = nn.Linear(channels_r, C, bias=released)
        self.rounds = nn.ModuleList((ReleasedRound if released else PaperRound)(config) for _ in range(L))

    def forward(self, pyramid: Pyramid, phrases: Tensor, counts: Sequence[int]) -> Maps:
        """Maps of all queries: `counts[b]` rows of `phrases` (M, C_r) belong to image b."""
        return self.ground(self.encode(pyramid), phrases, counts)

    def encode(self, pyramid: Pyramid) -> PixelFeatures:
        """The image side, which is the same for all phrases."""
        mask, valid_sizes = pyramid.mask(1), pyramid.valid_sizes
        F = self.neck(pyramid)  # (B, C_v, H, W)
        first, *later = self.project_pixels
        pixels = first(F, mask)  # eq. 1, F^, (B, C, H, W)
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
        """The phrase side; `given` indices replace the selected ones, round by round."""
        R = self.project_phrases(phrases)  # R^0, the other half of that equation, (M, C)
        H = match(R, pixels.rounds[0], counts)  # H^0, (M, H, W)
        maps = Maps([H], [])
        for number, refine in enumerate(self.rounds):  # eq. 10
            before, F = pixels.rounds[number : number + 2]
            indices, missing = given[number] if given else None, None
            if indices is None and self.config.pixels > 0:
                indices, missing = compatible_pixels(H, self.config, counts, pixels.valid_sizes)
            context = None
            if indices is not None:
                maps.indices.append(indices)
                source = F if self.config.variant == "released" else before
                context = sample(source, indices, counts)  # H_f, (M, S, C)
            R, projected = refine(R, context, missing)  # R^(l+1), (M, C)
            H = match(projected, F, counts)  # H^(l+1)
            maps.H.append(H)
        return maps


class PPMN(nn.Module):
    """The whole network, from encoders of any kind."""

    def __init__(self, image_encoder: ImageEncoder, text_encoder: TextEncoder, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.image_encoder = image_encoder
        self.preprocess = Preprocess(config.short_side, config.long_side, image_encoder.multiple)
        self.text_encoder = text_encoder
        self.head = Head(image_encoder.channels, text_encoder.channels, config)

    def forward(
        self, images: Sequence[Tensor] | Sequence[Features], captions: Sequence[Tokens] | Queries
    ) -> tuple[Maps, Queries]:
        """Resized images and tokenized captions, or the outputs of frozen encoders -> maps."""
        cached = isinstance(images[0], Mapping)
        pyramid = self.image_encoder.pyramid(images) if cached else self.image_encoder(images)  # type: ignore[arg-type]
        queries = captions if isinstance(captions, Queries) else self.text_encoder(captions)
        return self.head(pyramid, queries.vectors, queries.counts), queries
