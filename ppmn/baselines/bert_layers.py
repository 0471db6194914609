"""BERT's layers, with the names of the two-stage checkpoint: post-norm, erf-GELU, dropout as in BERT."""

import math
from dataclasses import dataclass

import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.baselines.packing import Packing

EPS = 1e-12  # of every layer norm
MASKED = -10_000.0  # added to the scores of masked keys


@dataclass(frozen=True)
class LayerShape:
    """The sizes that all layers share."""

    width: int
    heads: int
    ffn: int
    dropout: float


def key_mask(valid: Tensor) -> Tensor:
    """What is added to attention scores: 0 for valid keys (B, m), -10,000 for others, (B, 1, 1, m)."""
    return (~valid)[:, None, None, :] * MASKED


class MultiHead(nn.Module):
    """Multi-head attention up to its output projection.

    Where rows are packed, only the attention itself is computed on padded batches.
    """

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        mask: Tensor | None,
        packing: Packing | None = None,
        context_packing: Packing | None = None,
    ) -> Tensor:
        q = self._split(self.query(x), packing)  # (B, heads, n, d)
        k = self._split(self.key(context), context_packing)  # (B, heads, m, d)
        v = self._split(self.value(context), context_packing)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])  # (B, heads, n, m)
        if mask is not None:
            scores = scores + mask
        weights = self.dropout(scores.softmax(-1))
        y = (weights @ v).transpose(1, 2).flatten(2)  # (B, n, width)
        return y if packing is None else packing.pack(y)

    def _split(self, x: Tensor, packing: Packing | None) -> Tensor:
        x = x if packing is None else packing.pad(x)
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Residual(nn.Module):
    """LN(x + dropout(W h + b)), the end of every attention and every FFN."""

    def __init__(self, c_in: int, shape: LayerShape) -> None:
        super().__init__()
        self.dense = nn.Linear(c_in, shape.width)
        self.LayerNorm = nn.LayerNorm(shape.width, eps=EPS)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        return self.LayerNorm(x + self.dropout(self.dense(h)))


class Expansion(nn.Module):
    """GELU(W x + b), the first half of an FFN."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.width, shape.ffn)

    def forward(self, x: Tensor) -> Tensor:
        return fn.gelu(self.dense(x))


class SelfAttention(nn.Module):
    """LN(x + O(att(q = x, kv = x)))."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.self = MultiHead(shape)
        self.output = Residual(shape.width, shape)

    def forward(self, x: Tensor, mask: Tensor | None, packing: Packing | None = None) -> Tensor:
        return self.output(self.self(x, x, mask, packing, packing), x)


class CrossAttention(nn.Module):
    """LN(x + O(att(q = x, kv = context)))."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.att = MultiHead(shape)
        self.output = Residual(shape.width, shape)

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        mask: Tensor | None,
        packing: Packing | None = None,
        context_packing: Packing | None = None,
    ) -> Tensor:
        return self.output(self.att(x, context, mask, packing, context_packing), x)


class BertLayer(nn.Module):
    """Self-attention and FFN."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.attention = SelfAttention(shape)
        self.intermediate = Expansion(shape)
        self.output = Residual(shape.ffn, shape)

    def forward(self, x: Tensor, mask: Tensor | None, packing: Packing | None = None) -> Tensor:
        x = self.attention(x, mask, packing)
        return self.output(self.intermediate(x), x)
