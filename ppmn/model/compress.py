"""How the text encoder of a model file is stored in 8 bits: integers and one scale per row."""

from collections.abc import Mapping

import torch
from torch import Tensor

_SCALE = ".scale"
_WORDS, _LAYERS = "embeddings.word_embeddings.weight", "text_encoder.bert.encoder."


def compress(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in half precision; word table and linear layers of the text encoder in 8 bits."""
    stored = {}
    for name, tensor in tensors.items():
        if name.endswith(_WORDS) or (name.startswith(_LAYERS) and tensor.ndim == 2):
            scale = tensor.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127  # (rows, 1)
            stored[name] = (tensor / scale).round().to(torch.int8)
            stored[name + _SCALE] = scale.float()
        else:
            stored[name] = tensor.half()
    return stored


def expand(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that `compress` was given, the 8-bit ones in single precision; others are unchanged."""
    full = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8 and name + _SCALE in tensors:
            full[name] = tensor.float() * tensors[name + _SCALE]
        elif not (name.endswith(_SCALE) and name.removesuffix(_SCALE) in tensors):
            full[name] = tensor
    return full
