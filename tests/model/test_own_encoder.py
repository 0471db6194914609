"""An image encoder of one's own, as docs/extending.md describes it, in a network that grounds and trains."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from support.models import random_images, small_config
from torch import Tensor, nn

from ppmn.grounding.grounder import Grounder
from ppmn.model.losses import ppm_losses, total_loss
from ppmn.model.network import PPMN
from ppmn.model.pyramid import Features, ImageEncoder, Pyramid
from ppmn.model.text import TextEncoder


class PatchEncoder(nn.Module):
    """One linear layer per level: patches of 4, 8, 16 and 32 pixels -> p2..p5."""

    channels, token_channels, stride, multiple = 32, 32, 8, 32

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.Conv2d(3, self.channels, side, side) for side in (4, 8, 16, 32))

    def padded_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width  # both are multiples of 32 already

    def forward(self, images: Sequence[Tensor]) -> Pyramid:
        return self.pyramid(self.features(images))

    def features(self, images: Sequence[Tensor]) -> list[Features]:
        return [{"pixels": image / 255} for image in images]  # nothing is frozen but the division

    def pyramid(self, features: Sequence[Features]) -> Pyramid:
        return Pyramid.of([[level(image["pixels"]) for level in self.levels] for image in features])

    def frozen_part(self) -> tuple[nn.Module, str]:
        return nn.Identity(), "pixels / 255"

    def feature_count(self, height: int, width: int) -> int:
        return 3 * height * width


def own_ppmn(text: Path) -> PPMN:
    encoder: ImageEncoder = PatchEncoder()
    config = small_config(text)
    return PPMN(encoder, TextEncoder.from_source(str(text), config.query), config).eval()


def test_grounding_with_an_own_encoder(text: Path) -> None:
    grounder = Grounder(own_ppmn(text), device="cpu")
    image = Image.linear_gradient("L").resize((90, 60)).convert("RGB")
    grounding = grounder.encode(image).ground("a red ball on the grass")
    assert [phrase.text for phrase in grounding] == ["red ball", "grass"]
    assert all(phrase.mask.shape == (60, 90) for phrase in grounding)


def test_batch_equals_singles_and_gradients_flow(text: Path) -> None:
    model = own_ppmn(text)
    images = random_images((64, 96), (96, 64))
    tokens = [model.text_encoder.tokenize("a red dog", [(2, 9)])] * 2
    maps, queries = model(images, tokens)
    for rows, image in zip(maps.H[-1].split(list(queries.counts)), images, strict=True):
        single = model([image], tokens[:1])[0].H[-1]
        assert torch.allclose(rows[:, : single.shape[1], : single.shape[2]], single, atol=1e-4)
    cached, _ = model(model.image_encoder.features(images), tokens)
    assert torch.equal(cached.H[-1], maps.H[-1])
    total_loss(ppm_losses(maps.H, torch.ones_like(maps.H[-1]), model.config)).backward()
    assert all(parameter.grad is not None for parameter in model.get_submodule("image_encoder").parameters())
