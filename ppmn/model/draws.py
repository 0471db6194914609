"""The tokens that maps are drawn from, and the mean of several drawn maps; see pointing.py."""

from collections.abc import Sequence

import torch
import torch.nn.functional as fn
from torch import Tensor

from ppmn.model.pointing import TOKEN_STRIDE, Pointed, Pointing, TokenFeatures


def draw_mean(
    pointing: Pointing, pointed: Pointed, H: Tensor, tokens: TokenFeatures, counts: Sequence[int]
) -> Tensor:
    """The mean of the maps drawn from the tokens that queries most probably point at, (M, H, W).

    A map weighs as much as its token is probable and as the others agree with it. All are drawn at the
    stride of the tokens; the best of them once more at full size, for the details of the mean.
    """
    k = min(pointing.draws, pointed.logits.shape[1])
    likely = pointed.logits.softmax(1).topk(k, 1)  # (M, k)
    if k == 1:
        return pointing.draw(likely.indices[:, 0], pointed.phrases, H, tokens, counts)
    small = fn.avg_pool2d(H[:, None], TOKEN_STRIDE)[:, 0]
    phrases, last = (x[:, None].expand(-1, k, *x.shape[1:]).flatten(0, 1) for x in (pointed.phrases, small))
    points, per_image = likely.indices.flatten(), [k * count for count in counts]
    drawn = pointing.draw(points, phrases, last, tokens.coarse(), per_image).sigmoid()
    drawn = drawn.view(-1, k, *small.shape[1:])  # (M, k, h, w)
    valid = _valid_cells(tokens, small, counts)
    drawn = drawn if valid is None else drawn * valid[:, None]
    weights = likely.values * (soft_iou(drawn.flatten(2)) @ likely.values[..., None])[..., 0]
    weights = weights / weights.sum(1, keepdim=True)
    best = weights.argmax(1, keepdim=True)  # (M, 1)
    own = drawn.gather(1, best[..., None, None].expand(-1, -1, *small.shape[1:]))[:, 0]
    correction = (weights[:, :, None, None] * drawn).sum(1) - own
    full = pointing.draw(likely.indices.gather(1, best)[:, 0], pointed.phrases, H, tokens, counts).sigmoid()
    return (full + _enlarge(correction, valid)).logit(eps=1e-6)


def _valid_cells(tokens: TokenFeatures, maps: Tensor, counts: Sequence[int]) -> Tensor | None:
    """Which cells of maps (M, h, w) at the stride of the tokens are no padding, 1 or 0; None: all."""
    if tokens.valid is None:
        return None
    rows = torch.tensor(counts, device=maps.device)
    return tokens.valid.repeat_interleave(rows, 0).view_as(maps).to(maps.dtype)


def _enlarge(maps: Tensor, valid: Tensor | None) -> Tensor:
    """Maps (M, h, w) at twice their size, bilinear between valid cells; the others are 0."""

    def enlarge(x: Tensor) -> Tensor:
        return fn.interpolate(x[:, None], scale_factor=TOKEN_STRIDE, mode="bilinear")[:, 0]

    return enlarge(maps) if valid is None else enlarge(maps) / enlarge(valid).clamp(min=1e-6)


def soft_iou(maps: Tensor) -> Tensor:
    """How well maps of probabilities agree, each with each: (M, k, n) -> (M, k, k), from 0 to 1."""
    both = maps @ maps.mT
    own = maps.square().sum(-1)
    return both / (own[:, :, None] + own[:, None] - both).clamp(min=1e-6)


def tokens_inside(logits: Tensor, inside: Tensor) -> Tensor:
    """A random token of each mask, half of the time by how strongly the query points at it; (M,).

    A query without a mask takes the token that it points at.
    """
    aimed = logits.detach().softmax(1) * inside
    weights = inside / inside.sum(1, keepdim=True).clamp(min=1e-6)
    weights = weights + aimed / aimed.sum(1, keepdim=True).clamp(min=1e-20)
    empty = weights.sum(1) <= 0
    if not len(weights):
        return logits.new_zeros(0, dtype=torch.long)
    drawn = torch.multinomial(weights + empty[:, None], 1)[:, 0]
    return torch.where(empty, logits.argmax(1), drawn)
