"""The three parts of the network as they are exported: image -> features, words -> vectors, phrases -> maps.

Their tensors carry the names of the network's own, so that a graph finds its weights in a model folder.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ppmn.config import ModelConfig, ResNetConfig
from ppmn.grounding.weight_files import quantize
from ppmn.model.network import PPMN, PixelFeatures
from ppmn.model.places import centres
from ppmn.model.pointing import TokenFeatures


class ImageGraph(nn.Module):
    """A padded image -> what captions are grounded on, see `feature_names`."""

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.image_encoder, self.head = model.image_encoder, model.head

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """`image` (3, H, W) is RGB, 0..255, and padded with `padding_color`."""
        return flatten_features(self.head.encode(self.image_encoder([image])))


def padding_color(model: PPMN) -> list[float]:
    """The mean pixel, RGB: zero after normalisation, as the encoder pads."""
    mean = getattr(model.image_encoder, "mean", torch.zeros(3, 1, 1)).flatten()
    config = model.config.image
    flips = isinstance(config, ResNetConfig) and config.form == "detectron2"
    return [float(value) for value in (mean.flip(0) if flips else mean)]


class TextGraph(nn.Module):
    """Windows of word pieces, [CLS] and [SEP] included -> their vectors."""

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.text_encoder = model.text_encoder

    def forward(self, ids: Tensor) -> Tensor:
        """`ids` (windows, n) -> (windows, n, C_r)."""
        return self.text_encoder.bert(input_ids=ids).last_hidden_state


class CompressedTable(nn.Module):
    """A word table in 8 bits, with one scale per word; see `ppmn.model.compress`."""

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids].float() * self.scale[ids]


@torch.library.custom_op("ppmn::linear_8bit", mutates_args=())
def linear_8bit(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """x (..., C_in) in 256 steps from its lowest to its highest number, times integers (C_in, C_out)."""
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    step = (high - low) / 255
    zero = (-low / step).round()
    integers = ((x / step).round() + zero).clamp(0, 255) - zero
    return integers @ weight.to(x.dtype) * (step * scale) + bias


@linear_8bit.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[1])


class Linear8Bit(nn.Module):
    """A linear layer in 8 bits; what reads its weights makes them from those of the full layer."""

    weight_8bit: Tensor
    scale_8bit: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = quantize(linear.weight.detach().cpu().numpy())
        self.register_buffer("weight_8bit", torch.from_numpy(weight))
        self.register_buffer("scale_8bit", torch.from_numpy(scale))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return linear_8bit(x, self.weight_8bit, self.scale_8bit, self.bias)


@contextlib.contextmanager
def linear_layers_8bit(model: PPMN) -> Iterator[None]:
    """The model with the linear layers of its image transformer in 8 bits."""
    owners = list(model.image_encoder.vit.encoder.modules())  # type: ignore[attr-defined]
    full = [(m, name, child) for m in owners for name, child in m.named_children() if is_linear(child)]
    try:
        for owner, name, linear in full:
            setattr(owner, name, Linear8Bit(linear))
        yield
    finally:
        for owner, name, linear in full:
            setattr(owner, name, linear)


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer with a bias."""
    return isinstance(module, nn.Linear) and module.bias is not None


class PhraseGraph(nn.Module):
    """The word vectors of a caption and an encoded image -> maps of every round."""

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.head = model.head

    def forward(self, words: Tensor, pool: Tensor, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`words` (n, C_r); `pool` (M, n) holds the weights of the words in each query."""
        pixels = unflatten_features(features, self.head.config)
        named, pointing = pool @ words, self.head.pointing
        if pointing is not None and pixels.tokens is not None:
            (words,) = pointing.contextualize([words], pixels.tokens, [1])
        maps = self.head.ground(pixels, pool @ words, [pool.shape[0]], named=named)
        outputs = [torch.stack(maps.H)]  # (rounds + 1, M, H, W), with pointing one more
        outputs += [torch.stack(maps.indices)] if maps.indices else []  # (rounds, M, S)
        outputs += [kept for kept in (maps.presence, maps.certainty) if kept is not None]  # (M,)
        if pointing is not None and pointing.presence is not None and maps.pointed is not None:
            outputs.append(maps.pointed.somewhere)  # (M,)
        return tuple(outputs)


class ObjectGraph(nn.Module):
    """Tokens of an encoded image -> maps of the objects there."""

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.head = model.head

    def forward(self, points: Tensor, features: tuple[Tensor, ...]) -> Tensor:
        """`points` (n,), flat -> logits (n, H, W)."""
        tokens, pointing = unflatten_features(features, self.head.config).tokens, self.head.pointing
        assert pointing is not None and tokens is not None
        return pointing.draw_objects(points, tokens, [points.shape[0]])


def output_names(config: ModelConfig) -> list[str]:
    """The outputs of the phrase graph."""
    indices = ["indices"] if config.rounds and config.pixels else []
    pointing = config.pointing
    somewhere = ["somewhere"] if pointing and pointing.presence_layers else []
    return ["maps", *indices, *(["presence", "certainty"] if pointing else []), *somewhere]


def feature_names(config: ModelConfig) -> list[str]:
    """The features of an encoded image: outputs of the image graph, inputs of the phrase graph."""
    names = [f"pixels_{index}" for index in range(config.rounds + 1)]
    if config.pointing:
        names += ["tokens", "keys", "fine_pixels", "places"]
        layers = [f"memory_{n}" for n in range(config.pointing.phrase_layers)]
        of_presence = config.pointing.presence_layers + 1 if config.pointing.presence_layers else 0
        layers += [f"memory_of_presence_{n}" for n in range(of_presence)]
        names += [f"{layer}_{kind}" for layer in layers for kind in ("k", "v")]
    return names


def feature_shapes(config: ModelConfig, height: Any, width: Any, tokens: Any) -> tuple[dict[int, Any], ...]:
    """Which sizes of the features depend on the image."""
    map_sizes, rows, columns = {1: height, 2: width}, {1: tokens}, {2: tokens}
    by_name = {"fine_pixels": {2: height, 3: width}, "tokens": rows, "keys": rows, "places": rows}
    return tuple(
        by_name.get(name, columns if name.startswith("memory") else map_sizes)
        for name in feature_names(config)
    )


def flatten_features(features: PixelFeatures) -> tuple[Tensor, ...]:
    """The features of one image in the order of `feature_names`.

    Of pixels the channels come last, (1, H, W, C), so that those that a phrase selects are read in one piece.
    """
    tokens = features.tokens
    rounds = tuple(F.permute(0, 2, 3, 1).contiguous() for F in features.rounds)
    if tokens is None:
        return rounds
    memory = [tensor for pair in (*tokens.memory, *tokens.presence) for tensor in pair]
    return (*rounds, tokens.tokens, tokens.keys, tokens.pixels, tokens.places, *memory)


def unflatten_features(tensors: Sequence[Tensor], config: ModelConfig) -> PixelFeatures:
    """The features of one image from what `flatten_features` returned."""
    rounds = tuple(F.permute(0, 3, 1, 2) for F in tensors[: config.rounds + 1])
    if config.pointing is None:
        return PixelFeatures(rounds)
    tokens, keys, pixels, places, *memory = tensors[config.rounds + 1 :]
    pairs = tuple(zip(memory[::2], memory[1::2], strict=True))
    phrase, presence = pairs[: config.pointing.phrase_layers], pairs[config.pointing.phrase_layers :]
    grid = centres(1, (pixels.shape[2], pixels.shape[3]), None, pixels)
    found = TokenFeatures(tokens, keys, phrase, presence, pixels, places, grid, None)
    return PixelFeatures(rounds, None, found)
