"""Attention by the means that are fastest on the device."""

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.model.bfloat16 import fused_attention_uses_bfloat16

QUERY_CHUNK = 128  # queries of bfloat16 attention whose scores are held at a time
_HEADS = 8

Memory = tuple[Tensor, Tensor]  # keys and values, (B, heads, n, d) each


def attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, *, scale: float | None = None
) -> Tensor:
    """Scaled dot-product attention, (B, heads, t, d) over (B, heads, n, d)."""
    plain = query.dtype == torch.bfloat16 and query.device.type == "cpu" and mask is None
    if plain and not fused_attention_uses_bfloat16():
        return plain_attention(query, keys, values, scale=scale)
    return fn.scaled_dot_product_attention(query, keys, values, mask, scale=scale)


def plain_attention(query: Tensor, keys: Tensor, values: Tensor, *, scale: float | None = None) -> Tensor:
    """The same by matrix products, which use the bfloat16 instructions of every processor that has them."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    queries = (query * scale).flatten(0, 1)  # (B heads, t, d)
    K, V = keys.flatten(0, 1).transpose(1, 2).contiguous(), values.flatten(0, 1).contiguous()
    chunks = [torch.bmm(torch.bmm(rows, K).softmax(-1), V) for rows in queries.split(QUERY_CHUNK, 1)]
    return torch.cat(chunks, 1).view(query.shape)


class Attention(nn.Module):
    """Multi-head attention over a memory whose keys and values can be computed ahead."""

    def __init__(self, channels: int, memory_channels: int, inner: int) -> None:
        super().__init__()
        self.query = nn.Linear(channels, inner)
        self.key_value = nn.Linear(memory_channels, 2 * inner)
        self.out = nn.Linear(inner, channels)

    def memory(self, x: Tensor) -> Memory:
        """Keys and values of a memory (B, n, C), (B, heads, n, d) each."""
        keys, values = self.key_value(x).unflatten(-1, (2, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        return keys, values

    def forward(self, x: Tensor, memory: Memory, mask: Tensor | None = None) -> Tensor:
        query = self.query(x).unflatten(-1, (_HEADS, -1)).transpose(1, 2)  # (B, heads, t, d)
        context = attention(query, *memory, mask)
        return self.out(context.transpose(1, 2).flatten(2))  # (B, t, C)
