"""Attention by the means that are fastest on the device."""

import torch
import torch.nn.functional as fn
from torch import Tensor

from ppmn.model.bfloat16 import fused_attention_uses_bfloat16

QUERY_CHUNK = 128  # queries of bfloat16 attention whose scores are held at a time


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
