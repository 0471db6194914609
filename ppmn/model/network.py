"""PPMN: `Head.forward` reads like section 3 of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ppmn.config import ModelConfig
from ppmn.model.lcpa import PaperRound, ReleasedRound, compatible_pixels, sample
from ppmn.model.matching import LinearProjection, PixelProjection, match
from ppmn.model.neck import Cells, Pyramid, SemanticFPN
from ppmn.model.resnet import Features
from ppmn.model.text import Queries, Tokens


@dataclass(frozen=True)
class Pixels:
    """All that the head knows of a batch of photos: the pixels that each of the L + 1 matchings uses."""

    rounds: tuple[Tensor, ...]  # L + 1 of (B, C, H, W)
    cells: Cells | None = None  # each photo's valid (H, W), None where padding counts


@dataclass(frozen=True)
class Maps:
    """Raw matching maps of every round and the pixels that led from one to the next."""

    H: list[Tensor]  # L + 1 of (M, H, W)
    indices: list[Tensor]  # L of (M, S), flat


class Head(nn.Module):
    """Neck, matching and LCPA: from a pyramid and query vectors to maps."""

    def __init__(self, channels_v: int, channels_r: int, config: ModelConfig) -> None:
        super().__init__()
        C, L, released = config.channels, config.rounds, config.wiring == "released"
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
        return self.ground(self.look(pyramid), phrases, counts)

    def look(self, pyramid: Pyramid) -> Pixels:
        """The photo's side, which no phrase changes."""
        mask, cells = pyramid.mask(1), pyramid.cells
        F = self.neck(pyramid)  # (B, C_v, H, W)
        first, *later = self.project_pixels
        pixels = first(F, mask)  # eq. 1
        source = pixels if self.config.wiring == "released" else F
        return Pixels(
            (pixels, *(project(source, mask) for project in later)),
            cells and [(4 * height, 4 * width) for height, width in cells],
        )

    def ground(
        self,
        pixels: Pixels,
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
                H, counts, pixels.cells, None if given is None else given[len(maps.H) - 1]
            )
            source = F if self.config.wiring == "released" else before
            context = None if indices is None else sample(source, indices, counts)  # H_f, (M, S, C)
            R, projected = refine(R, context, missing)  # R^(l+1)
            H = match(projected, F, counts)  # H^(l+1)
            maps.H.append(H)
            if indices is not None:
                maps.indices.append(indices)
        return maps

    def select(
        self, H: Tensor, counts: Sequence[int], cells: Cells | None, given: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        if self.config.pixels == 0 or given is not None:
            return given, None
        return compatible_pixels(H, self.config, counts, cells)


class PPMN(nn.Module):
    """The whole network; the encoders are handed in."""

    def __init__(self, image_encoder: Any, text_encoder: Any, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.head = Head(image_encoder.channels, text_encoder.channels, config)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "PPMN":
        """A saved model, on the CPU, for inference."""
        from ppmn.model.folder import load

        return load(Path(folder))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `model.safetensors` and `config.json`, and `text/` unless the text encoder is a package's."""
        from ppmn.model.folder import save

        save(self, Path(folder))

    def forward(
        self, photos: Sequence[Tensor] | Sequence[Features], captions: Sequence[Tokens] | Queries
    ) -> tuple[Maps, Queries]:
        """Prepared photos and tokenized captions, or what frozen encoders made of them, to maps."""
        kept = not isinstance(photos[0], Tensor)
        pyramid = self.image_encoder.pyramid(photos) if kept else self.image_encoder(photos)
        queries = captions if isinstance(captions, Queries) else self.text_encoder(captions)
        return self.head(pyramid, queries.vectors, queries.counts), queries
