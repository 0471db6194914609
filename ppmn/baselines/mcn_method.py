"""MCN, small, as a method: trained on things only, one phrase at a time, adaptive suppression at test."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ppmn.baselines.mcn import MCN, MCNConfig, MCNOutput
from ppmn.baselines.mcn_losses import Suppression, best_boxes, mcn_loss, suppress
from ppmn.baselines.region_vectors import region_boxes
from ppmn.config import MethodConfig
from ppmn.errors import InputError
from ppmn.model.method import Method, MethodLoss, TrainingBatch
from ppmn.model.network import Maps
from ppmn.model.pyramid import Features, ImageEncoder, Pyramid
from ppmn.model.text import Queries, TextEncoder, Tokens
from ppmn.types import Span

_CHUNK = 8  # phrases that are run together at test
_ALMOST = 1e-6  # from 0 and 1: probabilities whose logit is taken


@dataclass(frozen=True, kw_only=True)
class MCNMethodConfig(MethodConfig):
    """MCN on PPMN's encoders."""

    method = "mcn-small"
    threshold: float = 0.35
    language: int = 256  # channels of the phrase
    dropout: float = 0.1
    anchors: tuple[float, ...] = (0.33, 0.62, 0.6, 0.65, 0.93, 0.65)  # width, height of three; of the image
    box_branch: bool = True  # False: segmentation alone
    consistency: bool = True  # the consistency energy; needs the box branch
    suppression: Suppression = "adaptive"  # of what lies outside of the best box
    context: Literal["phrase", "caption"] = "phrase"  # what the words of a phrase are encoded with
    phrases_per_image: int = 2  # drawn in each training step

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.anchors) != 6:
            raise InputError(f"anchors has {len(self.anchors)} numbers; it must be 3 widths and heights")
        if self.phrases_per_image < 1:
            raise InputError(f"phrases_per_image is {self.phrases_per_image}; it must be at least 1")

    def network(self, words: int) -> MCNConfig:
        """The sizes of the network, for a text encoder of so many channels."""
        (a, b, c, d, e, f), parts = self.anchors, (self.box_branch, self.consistency)
        sizes = (self.image.channels, self.language, words, self.dropout)
        return MCNConfig(*sizes, ((a, b), (c, d), (e, f)), *parts)


@dataclass(frozen=True)
class PhraseTokens(Tokens):
    """Word pieces of a caption, and of each of its phrases by itself."""

    alone: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Levels:
    """F1, F2, F3 of a batch of images: p5, p4, p3."""

    maps: tuple[Tensor, Tensor, Tensor]

    def single(self, index: int) -> "Levels":
        """One image of a batch."""
        F1, F2, F3 = (level[index : index + 1] for level in self.maps)
        return Levels((F1, F2, F3))


class MCNMethod(Method):
    """One mask and one box for each phrase."""

    config_type = MCNMethodConfig
    config: MCNMethodConfig

    def __init__(
        self, image_encoder: ImageEncoder, text_encoder: TextEncoder, config: MCNMethodConfig
    ) -> None:
        super().__init__(image_encoder, text_encoder, config)
        self.mcn = MCN(config.network(text_encoder.channels))

    def tokenize(self, caption: str, spans: Sequence[Span]) -> PhraseTokens:
        """The word pieces of a caption, and of each phrase by itself."""
        whole = self.text_encoder.tokenize(caption, spans)
        texts = [caption[start:end] for start, end in spans]
        alone = tuple(self.text_encoder.tokenize(text, [(0, len(text))]).ids for text in texts)
        return PhraseTokens(whole.ids, whole.pieces, alone)

    def encode(self, pyramid: Pyramid) -> Levels:
        """p5, p4 and p3. As in the published code, which letterboxes, padding is part of the image."""
        _, p3, p4, p5 = pyramid.levels
        return Levels((p5, p4, p3))

    def forward(
        self,
        images: Sequence[Tensor] | Sequence[Features],
        captions: Sequence[Tokens],
        rows: Sequence[int],
        *,
        per_image: Sequence[int] | None = None,
        words: Sequence[Tensor] | None = None,
    ) -> MCNOutput:
        """The predictions for some of the phrases, by their numbers over all captions."""
        levels = self.encode(self.pyramid(images))
        return self.predict(levels, captions, rows, per_image=per_image, words=words)

    def predict(
        self,
        levels: Levels,
        captions: Sequence[Tokens],
        rows: Sequence[int],
        *,
        per_image: Sequence[int] | None = None,
        words: Sequence[Tensor] | None = None,
    ) -> MCNOutput:
        """As `forward`, on encoded images."""
        images = _image_of_each(captions, per_image)
        vectors = self._phrase_words(captions, rows, words)  # (t, C_r) each
        lengths = torch.tensor([len(v) for v in vectors], device=vectors[0].device)
        index = torch.tensor([images[row] for row in rows], device=vectors[0].device)
        F1, F2, F3 = (level[index] for level in levels.maps)
        output: MCNOutput = self.mcn(F1, F2, F3, pad_sequence(vectors, batch_first=True), lengths)
        return output

    def _phrase_words(
        self, captions: Sequence[Tokens], rows: Sequence[int], words: Sequence[Tensor] | None
    ) -> list[Tensor]:
        """The vectors of the word pieces of some phrases, encoded alone or in their captions."""
        if self.config.context == "phrase":
            alone = [ids for c in captions if isinstance(c, PhraseTokens) for ids in c.alone]
            return self.text_encoder.encode([alone[row] for row in rows])
        words = words or self.text_encoder.encode([c.ids for c in captions])
        pieces = [own[list(p)] for c, own in zip(captions, words, strict=True) for p in c.pieces]
        return [pieces[row] for row in rows]

    def ground(
        self,
        encoded: Levels,
        captions: Sequence[Tokens],
        *,
        per_image: Sequence[int] | None = None,
        words: Sequence[Tensor] | None = None,
    ) -> tuple[Maps, Queries]:
        """Responses after suppression, as logits."""
        images = _image_of_each(captions, per_image)
        responses = [encoded.maps[2].new_zeros(0, *encoded.maps[2].shape[2:])]
        for first in range(0, len(images), _CHUNK):
            rows = range(first, min(first + _CHUNK, len(images)))
            output = self.predict(encoded, captions, rows, per_image=per_image, words=words)
            responses.append(self._suppressed(output))
        H = torch.logit(torch.cat(responses).clamp(_ALMOST, 1 - _ALMOST))  # (M, H, W)
        counts = tuple(images.count(image) for image in range(len(encoded.maps[0])))
        vectors = H.new_zeros(len(H), self.text_encoder.channels)  # there is no vector in a common space
        return Maps([H], []), Queries(vectors, counts, (1,) * len(H))

    def _suppressed(self, output: MCNOutput) -> Tensor:
        M = output.mask.sigmoid()
        if output.boxes is None:
            return M
        return suppress(M, *best_boxes(output.boxes, self.mcn.config), kind=self.config.suppression)

    def loss(self, batch: TrainingBatch, network: nn.Module) -> MethodLoss:
        """Segmentation, box and consistency of a few thing phrases of each image."""
        rows, share = self._drawn(batch), len(batch.images) / batch.size
        captions, per_image, masks = batch.captions, batch.per_image, batch.targets.Y
        words, valid = batch.words, batch.targets.valid
        if not rows:  # run it all the same: other processes wait for its gradients
            captions, per_image = [self.tokenize("thing", [(0, 5)])], [1] + [0] * (len(batch.images) - 1)
            rows, share, words = [0, 0], 0.0, None
            masks, valid = masks.new_ones(1, *masks.shape[1:]), None
        with batch.autocast():
            output = network(batch.images, captions, rows, per_image=per_image, words=words)
        output = output.float()
        Y = masks[rows]
        loss = mcn_loss(output, Y, mask_boxes(Y), self.mcn.config, None if valid is None else valid[rows])
        return MethodLoss(loss * share, {"mcn": float(loss.detach()) * share})

    def _drawn(self, batch: TrainingBatch) -> list[int]:
        """Random thing phrases of each image that have a mask; at least two in all, for batch norm."""
        usable = (batch.targets.thing & batch.targets.Y.flatten(1).any(1)).tolist()
        images = _image_of_each(batch.captions, batch.per_image)
        rows: list[int] = []
        for image in range(len(batch.images)):
            mine = [row for row, own in enumerate(images) if own == image and usable[row]]
            order = torch.randperm(len(mine))[: self.config.phrases_per_image].tolist()
            rows += [mine[n] for n in order]
        return rows * 2 if len(rows) == 1 else rows


def mask_boxes(masks: Tensor) -> Tensor:
    """Tight boxes of masks (M, h, w): centre x, y, width and height in fractions, (M, 4)."""
    x1, y1, x2, y2, width, height, _ = region_boxes(masks > 0).unbind(1)
    return torch.stack([(x1 + x2) / 2, (y1 + y2) / 2, width, height], 1)


def _image_of_each(captions: Sequence[Tokens], per_image: Sequence[int] | None) -> list[int]:
    """The image of each phrase."""

    def numbers() -> Iterator[int]:
        remaining = iter(captions)
        for image, count in enumerate(per_image or [1] * len(captions)):
            for _ in range(count):
                yield from [image] * len(next(remaining).pieces)

    return list(numbers())
