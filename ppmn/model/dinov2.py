"""The compact image encoder: DINOv2 ViT-S/14, and a pyramid made of its one scale as ViTDet does.

The transformer is frozen but for its last blocks, where `tuned` says so.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as fn
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AttentionInterface, Dinov2Config, Dinov2Model
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ppmn.config import DINOv2Config
from ppmn.errors import InputError
from ppmn.model.pyramid import Features, Pyramid

PATCH = 14
CELL = 2 * PATCH  # of p5
WIDTH = 384
BLOCKS = 12
ROWS = 128  # queries whose scores are held at a time
SHAPE = Dinov2Config(
    hidden_size=WIDTH,
    num_attention_heads=6,
    image_size=518,
    patch_size=PATCH,
    use_mask_token=False,
    attn_implementation="ppmn",
)
WEIGHTS = Path(__file__).parents[1] / "weights" / "dinov2_vits14.safetensors"


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, scaling: float, **others: Any
) -> tuple[Tensor, None]:
    """Attention, (B, heads, n, d) -> (B, n, heads, d).

    In bfloat16 on a CPU, where nothing is trained, by plain products: they use the processor's instructions
    for it, which torch's fused attention leaves idle.
    """
    if query.dtype != torch.bfloat16 or query.device.type != "cpu" or torch.is_grad_enabled():
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **others)
    keys, values = key.flatten(0, 1).transpose(1, 2).contiguous(), value.flatten(0, 1).contiguous()
    queries = (query * scaling).flatten(0, 1)  # (B heads, n, d)
    found = torch.empty_like(queries)
    for rows, into in zip(queries.split(ROWS, 1), found.split(ROWS, 1), strict=True):
        into.copy_(torch.bmm(torch.bmm(rows, keys).softmax(-1), values))
    return found.view(query.shape).transpose(1, 2), None


AttentionInterface.register("ppmn", attend)


class Double(nn.Module):
    """A transposed 2x2 convolution of stride 2, as one matrix product."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(c_in, 4 * c_out)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        y = self.linear(x.flatten(2).transpose(1, 2)).view(batch, height, width, 2, 2, -1)
        return y.permute(0, 5, 1, 3, 2, 4).reshape(batch, -1, 2 * height, 2 * width)


class Adapter(nn.Module):
    """Patch tokens of a few layers -> p2..p5 at a quarter, half, once and twice the patch."""

    def __init__(self, layers: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(layers))
        self.lateral = nn.ModuleList(nn.Linear(layers * WIDTH, channels) for _ in range(4))
        norm = nn.GroupNorm(32, channels)
        self.four = nn.Sequential(Double(channels, channels), norm, nn.GELU(), Double(channels, channels))
        self.two = Double(channels, channels)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        batch, _, _, height, width = tokens.shape  # (B, layers, 384, h, w)
        rows = tokens.flatten(3).transpose(2, 3)  # (B, layers, h w, 384)
        rows = torch.cat([norm(rows[:, n]) for n, norm in enumerate(self.norms)], -1)
        p2, p3, p4, p5 = (
            project(rows).transpose(1, 2).view(batch, -1, height, width) for project in self.lateral
        )
        return self.four(p2), self.two(p3), p4, fn.max_pool2d(p5, 2)


class Dinov2FPN(nn.Module):
    """Photos -> p2..p5; photos are brought to multiples of two patches, so that nothing is padded."""

    stride = 7  # of F, in pixels of the resized image
    multiple = CELL
    mean: Tensor
    deviation: Tensor

    def __init__(self, config: DINOv2Config) -> None:
        super().__init__()
        self.config, self.channels = config, config.channels
        self.vit = Dinov2Model(SHAPE)
        self.vit.load_state_dict({name: value.float() for name, value in read_base().items()})
        self.adapter = Adapter(len(config.layers), config.channels)
        rgb = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1) * 255
        self.register_buffer("mean", rgb[0], persistent=False)
        self.register_buffer("deviation", rgb[1], persistent=False)

    def padded_size(self, height: int, width: int) -> tuple[int, int]:
        """The next whole pairs of patches: a prepared photo itself."""
        return math.ceil(height / CELL) * CELL, math.ceil(width / CELL) * CELL

    def forward(self, photos: Sequence[Tensor]) -> Pyramid:
        """Prepared photos of any sizes -> their pyramids in one batch."""
        return self.pyramid(self.features(photos))

    def features(self, photos: Sequence[Tensor]) -> list[Features]:
        """What the frozen blocks make of each photo: patch tokens of the layers that are kept."""
        alone: dict[int, Features] = {}
        embed, *blocks = self.frozen
        for indices in alike(photos):
            x = torch.stack([photos[i].to(self.mean.device, self.mean.dtype) for i in indices])
            grid = (x.shape[2] // PATCH, x.shape[3] // PATCH)
            states = run(blocks, embed((x - self.mean) / self.deviation))
            for row, index in enumerate(indices):
                tokens = [states[layer][row, 1:].T.unflatten(1, grid) for layer in self.kept]
                first = {"class": states[-1][row, 0]} if self.config.trainable_blocks else {}  # (384,)
                alone[index] = {"tokens": torch.stack(tokens), **first}  # (kept, 384, h, w)
        return [alone[index] for index in range(len(photos))]

    def pyramid(self, features: Sequence[Features]) -> Pyramid:
        """The trained part: what `features` made, or what was kept of it -> p2..p5."""
        alone: dict[int, tuple[Tensor, ...]] = {}
        for indices in alike([photo["tokens"] for photo in features]):
            tokens = torch.stack([features[i]["tokens"] for i in indices])  # (B, kept, 384, h, w)
            if self.config.trainable_blocks:
                tokens = self.tune(tokens, torch.stack([features[i]["class"] for i in indices]))
            levels = self.adapter(tokens)
            alone |= zip(indices, zip(*(level.unbind() for level in levels), strict=True), strict=True)
        return Pyramid.of([alone[index] for index in range(len(features))])

    def tune(self, tokens: Tensor, first: Tensor) -> Tensor:
        """Kept tokens, the last of them with their class token -> the tokens of all chosen layers."""
        grid, last = tokens.shape[3:], tokens[:, -1].flatten(2).transpose(1, 2)  # (B, h w, 384)
        states = run(self.trainable, torch.cat([first[:, None], last], 1))
        found = dict(zip(self.kept, tokens.unbind(1), strict=True))
        for layer, state in enumerate(states[1:], self.kept[-1] + 1):
            found[layer] = state[:, 1:].transpose(1, 2).unflatten(2, grid)  # (B, 384, h, w)
        return torch.stack([found[layer] for layer in self.config.layers], 1)

    @property
    def frozen(self) -> nn.ModuleList:
        """The embeddings and the blocks that no training changes."""
        return nn.ModuleList(
            [self.vit.embeddings, *self.vit.encoder.layer[: BLOCKS - self.config.trainable_blocks]]
        )

    @property
    def trainable(self) -> nn.ModuleList:
        """The last blocks, which are trained with the pyramid."""
        return self.vit.encoder.layer[BLOCKS - self.config.trainable_blocks :]

    @property
    def kept(self) -> tuple[int, ...]:
        """The layers whose tokens `features` gives: chosen ones, and what the tuned blocks go on from."""
        last = BLOCKS - self.config.trainable_blocks
        chosen = {layer for layer in self.config.layers if layer <= last}
        return tuple(sorted(chosen | ({last} if self.config.trainable_blocks else set())))

    def frozen_part(self) -> tuple[nn.Module, str]:
        """The module that `features` runs, and what else decides its output; the adapter does not."""
        return self.frozen, f"dinov2 {self.kept}"

    def feature_count(self, height: int, width: int) -> int:
        """How many numbers `features` makes of a resized image of this size."""
        tokens = len(self.kept) * (height // PATCH) * (width // PATCH)
        return WIDTH * (tokens + (1 if self.config.trainable_blocks else 0))


def run(blocks: Iterable[nn.Module], state: Tensor) -> list[Tensor]:
    """What goes into the first block, and what comes out of each."""
    states = [state]
    for block in blocks:
        states.append(block(states[-1]))
    return states


def alike(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Indices of tensors of equal shape, together."""
    if len(tensors) == 1:  # its shape may be a symbol, which no table can hold
        return [[0]]
    together = defaultdict(list)
    for index, tensor in enumerate(tensors):
        together[tensor.shape].append(index)
    return list(together.values())


def read_base() -> dict[str, Tensor]:
    """The transformer's own weights, which ship in half precision."""
    if not WEIGHTS.is_file():
        raise InputError(f"{WEIGHTS.name} is not part of this installation of ppmn")
    return load_file(WEIGHTS)
