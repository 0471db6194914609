"""The three parts of the network as they are exported: image -> features, words -> vectors, phrases -> maps.

Their tensors carry the names of the network's own, so that a graph finds its weights in a model folder.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ppmn.config import ModelConfig, ResNetConfig
from ppmn.model.network import PPMN, PixelFeatures
from ppmn.model.pointing import PhraseLayer, TokenFeatures, centres


class ImageGraph(nn.Module):
    """A padded image -> what captions are grounded on, see `feature_names`."""

    mean: Tensor

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.image_encoder, self.head = model.image_encoder, model.head
        mean = getattr(self.image_encoder, "mean", torch.zeros(3, 1, 1))
        config = model.config.image
        flips = isinstance(config, ResNetConfig) and config.form == "detectron2"
        self.register_buffer("mean", mean.flip(0) if flips else mean.clone(), persistent=False)  # RGB

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """`image` (3, H, W) is RGB, 0..255; its upper left `size` (h, w) counts, the rest is padding."""
        rows = torch.arange(image.shape[1], device=image.device) < size[0]
        columns = torch.arange(image.shape[2], device=image.device) < size[1]
        inside = rows[:, None] & columns  # (H, W)
        padded = torch.where(inside, image, self.mean)  # zero after normalisation, as the encoder pads
        return flatten_features(self.head.encode(self.image_encoder([padded])))


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


class PhraseGraph(nn.Module):
    """The word vectors of a caption and an encoded image -> maps of every round."""

    def __init__(self, model: PPMN) -> None:
        super().__init__()
        self.head = model.head

    def forward(self, words: Tensor, pool: Tensor, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`words` (n, C_r); `pool` (M, n) holds the weights of the words in each query."""
        pixels = unflatten_features(features, self.head.config)
        pointing = self.head.pointing
        if pointing is not None and pixels.tokens is not None:
            x = words[None]
            for layer, memory in zip(pointing.phrase_layers, pixels.tokens.memory, strict=True):
                x = cast(PhraseLayer, layer)(x, None, memory, None, [1])
            words = x[0]
        maps = self.head.ground(pixels, pool @ words, [pool.shape[0]])
        outputs = [torch.stack(maps.H)]  # (rounds + 1, M, H, W), with pointing one more
        outputs += [torch.stack(maps.indices)] if maps.indices else []  # (rounds, M, S)
        return (*outputs, maps.presence) if maps.presence is not None else tuple(outputs)


def output_names(config: ModelConfig) -> list[str]:
    """The outputs of the phrase graph."""
    indices = ["indices"] if config.rounds and config.pixels else []
    return ["maps", *indices, *(["presence"] if config.pointing else [])]


def feature_names(config: ModelConfig) -> list[str]:
    """The features of an encoded image: outputs of the image graph, inputs of the phrase graph."""
    names = [f"pixels_{index}" for index in range(config.rounds + 1)]
    if config.pointing:
        names += ["tokens", "keys", "fine_pixels", "places"]
        names += [f"memory_{n}_{kind}" for n in range(config.pointing.phrase_layers) for kind in ("k", "v")]
    return names


def feature_shapes(config: ModelConfig, height: Any, width: Any, tokens: Any) -> tuple[dict[int, Any], ...]:
    """Which sizes of the features depend on the image."""
    map_sizes, rows, columns = {2: height, 3: width}, {1: tokens}, {2: tokens}
    by_name = {"tokens": rows, "keys": rows, "places": rows}
    return tuple(
        by_name.get(name, columns if name.startswith("memory") else map_sizes)
        for name in feature_names(config)
    )


def flatten_features(features: PixelFeatures) -> tuple[Tensor, ...]:
    """The features of one image in the order of `feature_names`."""
    tokens = features.tokens
    if tokens is None:
        return features.rounds
    memory = [tensor for pair in tokens.memory for tensor in pair]
    return (*features.rounds, tokens.tokens, tokens.keys, tokens.pixels, tokens.places, *memory)


def unflatten_features(tensors: Sequence[Tensor], config: ModelConfig) -> PixelFeatures:
    """The features of one image from what `flatten_features` returned."""
    rounds = tuple(tensors[: config.rounds + 1])
    if config.pointing is None:
        return PixelFeatures(rounds)
    tokens, keys, pixels, places, *memory = tensors[config.rounds + 1 :]
    pairs = tuple(zip(memory[::2], memory[1::2], strict=True))
    grid = centres(1, (pixels.shape[2], pixels.shape[3]), None, pixels)
    return PixelFeatures(rounds, None, TokenFeatures(tokens, keys, pairs, pixels, places, grid, None))
