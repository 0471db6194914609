"""A method in thirty lines, as docs/extending.md shows it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ppmn.config import MethodConfig
from ppmn.model.losses import bce_loss
from ppmn.model.matching import match
from ppmn.model.method import Method, MethodLoss, TrainingBatch
from ppmn.model.network import Maps, PixelFeatures
from ppmn.model.pyramid import Pyramid
from ppmn.model.text import Queries, Tokens


class ToyConfig(MethodConfig):
    """No field of its own."""

    method = "toy"


class Toy(Method):
    """Pixels of p3 times phrases, without a neck and without rounds."""

    config_type = ToyConfig

    def __init__(self, image_encoder: Any, text_encoder: Any, config: ToyConfig) -> None:
        super().__init__(image_encoder, text_encoder, config)
        self.project_pixels = nn.Conv2d(image_encoder.channels, 32, 1)
        self.project_phrases = nn.Linear(text_encoder.channels, 32)

    def encode(self, pyramid: Pyramid) -> PixelFeatures:
        return PixelFeatures((self.project_pixels(pyramid.levels[1]),))

    def ground(
        self,
        encoded: PixelFeatures,
        captions: Sequence[Tokens],
        *,
        per_image: Sequence[int] | None = None,
        words: Sequence[Tensor] | None = None,
    ) -> tuple[Maps, Queries]:
        words = words or self.text_encoder.encode([caption.ids for caption in captions])
        queries = self.text_encoder.queries(captions, words, per_image)
        H = match(self.project_phrases(queries.vectors), encoded.rounds[0], queries.counts)
        return Maps([H], []), queries

    def forward(self, batch: TrainingBatch) -> Maps:
        encoded = self.encode(self.pyramid(batch.images))
        return self.ground(encoded, batch.captions, per_image=batch.per_image, words=batch.words)[0]

    def loss(self, batch: TrainingBatch, network: nn.Module) -> MethodLoss:
        H = network(batch).H[-1]
        loss = bce_loss(H, batch.targets.Y, batch.targets.valid, batch.pixels)
        return MethodLoss(loss, {"bce": float(loss.detach())})
