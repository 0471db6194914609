"""The compact image encoder: DINOv2 ViT-S/14 with a pyramid from its single scale, as in ViTDet."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as fn
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AttentionInterface, Dinov2Config, Dinov2Model

from ppmn.config import DINOv2Config
from ppmn.errors import InputError
from ppmn.model.attention import attention
from ppmn.model.locate import DINOV2_WEIGHTS
from ppmn.model.pyramid import Features, Pyramid, group_by_shape
from ppmn.types import Size

_PATCH = 14
_WIDTH = 384
_DEPTH = 12
_POSITIONS = 37  # along each side of the table of positions
VIT_CONFIG = Dinov2Config(
    hidden_size=_WIDTH,
    num_attention_heads=6,
    image_size=_POSITIONS * _PATCH,
    patch_size=_PATCH,
    use_mask_token=False,
    attn_implementation="ppmn",
)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, scaling: float, **others: Any
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, (B, heads, n, d) -> (B, n, heads, d)."""
    return attention(query, key, value, scale=scaling).transpose(1, 2), None


AttentionInterface.register("ppmn", attend)


def resize_cubic(x: Tensor, length: int) -> Tensor:
    """Resize the first axis of (n, ., C) as `fn.interpolate` does, with bicubic weights.

    Without its operator, which ONNX Runtime computes one number at a time.
    """
    place = (torch.arange(length, device=x.device) + 0.5) * (len(x) / length) - 0.5
    first = place.floor()
    out: Tensor | float = 0.0
    for tap in (-1, 0, 1, 2):
        d = (first + tap - place).abs()
        near, far = (1.25 * d - 2.25) * d * d + 1, ((-0.75 * d + 3.75) * d - 6) * d + 3
        weight = torch.where(d <= 1, near, far)
        out = out + weight[:, None, None] * x[(first.long() + tap).clamp(0, len(x) - 1)]
    return torch.as_tensor(out)


def embed(embeddings: Any, x: Tensor) -> Tensor:
    """Patches of normalised images, the class token before them, with their positions: (B, 1 + n, C)."""
    rows, columns = x.shape[2] // _PATCH, x.shape[3] // _PATCH
    own_class, table = embeddings.position_embeddings.split([1, _POSITIONS**2], 1)
    table = resize_cubic(table[0].unflatten(0, (_POSITIONS, _POSITIONS)), rows)  # (h, 37, C)
    positions = resize_cubic(table.transpose(0, 1), columns).transpose(0, 1).flatten(0, 1)  # (h w, C)
    first = (embeddings.cls_token + own_class).expand(len(x), -1, -1)
    return torch.cat([first, embeddings.patch_embeddings(x) + positions], 1)


class Double(nn.Module):
    """A transposed 2x2 convolution of stride 2, as one matrix product."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(c_in, 4 * c_out)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        y = self.linear(x.flatten(2).transpose(1, 2)).view(batch, height, width, 2, 2, -1)
        rows = y.transpose(2, 3).flatten(1, 4)  # (B, 4 h w, C): whole pixels move before channels do
        return rows.transpose(1, 2).reshape(batch, -1, 2 * height, 2 * width)


class Adapter(nn.Module):
    """Patch tokens of a few layers, normed, and p2..p5 at strides of a quarter, half, one and two patches."""

    def __init__(self, layers: int, channels: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.lateral = nn.ModuleList(nn.Linear(layers * width, channels) for _ in range(4))
        norm = nn.GroupNorm(32, channels)
        self.four = nn.Sequential(Double(channels, channels), norm, nn.GELU(), Double(channels, channels))
        self.two = Double(channels, channels)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        batch, _, _, height, width = tokens.shape  # (B, layers, 384, h, w)
        rows = tokens.flatten(3).transpose(2, 3)  # (B, layers, h w, 384)
        rows = torch.cat([norm(rows[:, n]) for n, norm in enumerate(self.norms)], -1)
        p2, p3, p4, p5 = (
            project(rows).transpose(1, 2).view(batch, -1, height, width) for project in self.lateral
        )
        own_tokens = rows.transpose(1, 2).unflatten(2, (height, width))  # (B, layers 384, h, w)
        return self.four(p2), self.two(p3), p4, fn.max_pool2d(p5, 2), own_tokens


class DINOv2FPN(nn.Module):
    """Images -> p2..p5; frozen but for the pyramid and the last `config.trainable_blocks` blocks."""

    stride = _PATCH // 2  # of F, in pixels of the resized image
    multiple = 2 * _PATCH  # p5 has one pixel per two patches, so nothing has to be padded
    mean: Tensor
    deviation: Tensor

    def __init__(self, config: DINOv2Config) -> None:
        super().__init__()
        self.config, self.channels = config, config.channels
        self.token_channels = len(config.layers) * _WIDTH
        self.vit = Dinov2Model(VIT_CONFIG)
        self.vit.load_state_dict({name: value.float() for name, value in read_base().items()}, assign=True)
        self.adapter = Adapter(len(config.layers), config.channels)
        # on the CPU also where the module is built on the meta device: no file holds these
        rgb = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], device="cpu") * 255
        mean, deviation = rgb.view(2, 3, 1, 1)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("deviation", deviation, persistent=False)

    def padded_size(self, height: int, width: int) -> Size:
        """The next multiples of two patches; a resized image has such sides already."""
        side = self.multiple
        return math.ceil(height / side) * side, math.ceil(width / side) * side

    def forward(self, images: Sequence[Tensor]) -> Pyramid:
        """Resized images of any sizes -> their pyramids in one batch."""
        return self.pyramid(self.features(images))

    @torch.no_grad()
    def features(self, images: Sequence[Tensor]) -> list[Features]:
        """The outputs of the frozen blocks for each image: patch tokens of `feature_layers`."""
        features: dict[int, Features] = {}
        embeddings, *blocks = self.frozen
        for indices in group_by_shape(images):
            x = torch.stack([images[i].to(self.mean.device, self.mean.dtype) for i in indices])
            grid = (x.shape[2] // _PATCH, x.shape[3] // _PATCH)
            states = _run_blocks(blocks, embed(embeddings, (x - self.mean) / self.deviation))
            for row, index in enumerate(indices):
                tokens = [states[layer][row, 1:].T.unflatten(1, grid) for layer in self.feature_layers]
                own = {"tokens": torch.stack(tokens)}  # (layers, 384, h, w)
                if self.trained_blocks:
                    own["class"] = states[-1][row, 0]  # (384,)
                features[index] = own
        return [features[index] for index in range(len(images))]

    def pyramid(self, features: Sequence[Features]) -> Pyramid:
        """The trained part: what `features` returned, or what was cached of it -> p2..p5."""
        single: dict[int, tuple[Tensor, ...]] = {}
        for indices in group_by_shape([image["tokens"] for image in features]):
            tokens = torch.stack([features[i]["tokens"] for i in indices])  # (B, layers, 384, h, w)
            if self.trained_blocks:
                tokens = self.finish(tokens, torch.stack([features[i]["class"] for i in indices]))
            levels = self.adapter(tokens)
            single |= zip(indices, zip(*(level.unbind() for level in levels), strict=True), strict=True)
        return Pyramid.of([single[index] for index in range(len(features))])

    def finish(self, tokens: Tensor, class_token: Tensor) -> Tensor:
        """Run the trained blocks: tokens of `feature_layers` -> tokens of `config.layers`."""
        grid, last = tokens.shape[3:], tokens[:, -1].flatten(2).transpose(1, 2)  # (B, h w, 384)
        states = _run_blocks(self.trainable, torch.cat([class_token[:, None], last], 1))
        by_layer = dict(zip(self.feature_layers, tokens.unbind(1), strict=True))
        for layer, state in enumerate(states[1:], self.feature_layers[-1] + 1):
            by_layer[layer] = state[:, 1:].transpose(1, 2).unflatten(2, grid)  # (B, 384, h, w)
        return torch.stack([by_layer[layer] for layer in self.config.layers], 1)

    @property
    def frozen(self) -> nn.ModuleList:
        """The embeddings and the blocks that are never trained."""
        return nn.ModuleList([self.vit.embeddings, *self.vit.encoder.layer[: _DEPTH - self.trained_blocks]])

    @property
    def trainable(self) -> nn.ModuleList:
        """The last blocks, which may be trained with the pyramid."""
        return self.vit.encoder.layer[_DEPTH - self.config.trainable_blocks :]

    @property
    def trained_blocks(self) -> int:
        """How many of the last blocks take gradients; the others belong to the frozen part."""
        takes_gradients = any(p.requires_grad for p in self.trainable.parameters())
        return self.config.trainable_blocks if takes_gradients else 0

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers whose tokens `features` returns: chosen ones, and the input of the trainable blocks."""
        last = _DEPTH - self.trained_blocks
        chosen = {layer for layer in self.config.layers if layer <= last}
        return tuple(sorted(chosen | ({last} if self.trained_blocks else set())))

    def frozen_part(self) -> tuple[nn.Module, str]:
        """The module that `features` runs, and what else decides its output; the adapter does not."""
        return self.frozen, f"dinov2 {self.feature_layers}"

    def feature_count(self, height: int, width: int) -> int:
        """How many numbers `features` returns for a resized image of this size."""
        tokens = len(self.feature_layers) * (height // _PATCH) * (width // _PATCH)
        return _WIDTH * (tokens + (1 if self.trained_blocks else 0))


def read_base() -> dict[str, Tensor]:
    """DINOv2's own weights, which ship in half precision."""
    if not DINOV2_WEIGHTS.is_file():
        raise InputError(f"{DINOV2_WEIGHTS.name} is not part of this installation of ppmn")
    return load_file(DINOV2_WEIGHTS)


def _run_blocks(blocks: Iterable[nn.Module], state: Tensor) -> list[Tensor]:
    """The input of the first block and the output of each."""
    states = [state]
    for block in blocks:
        states.append(block(states[-1]))
    return states
