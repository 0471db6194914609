"""Language-compatible pixel aggregation (section 3.3): select pixels, aggregate them, match again."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.config import ModelConfig
from ppmn.model.matching import channels_last, pixel_columns
from ppmn.model.pyramid import ValidSizes
from ppmn.types import Size


def blur(H: Tensor) -> Tensor:
    """A map resized to twice its size and back, bilinearly: a kernel of 1/8, 3/4, 1/8 along each axis."""
    rows = fn.pad(H[:, None], (0, 0, 1, 1), mode="replicate")[:, 0]
    H = torch.add(0.75 * H, rows[:, :-2] + rows[:, 2:], alpha=0.125)
    columns = fn.pad(H[:, None], (1, 1, 0, 0), mode="replicate")[:, 0]
    return torch.add(0.75 * H, columns[..., :-2] + columns[..., 2:], alpha=0.125)


def replicate(H: Tensor, sizes: Tensor) -> Tensor:
    """Fill padding with the nearest valid value, as if each map ended at its valid size (h, w)."""
    height, width = H.shape[-2:]
    y = torch.arange(height, device=H.device).minimum(sizes[:, :1] - 1)  # (M, height)
    x = torch.arange(width, device=H.device).minimum(sizes[:, 1:] - 1)  # (M, width)
    return H.gather(1, y[..., None].expand(-1, -1, width)).gather(2, x[:, None].expand(-1, height, -1))


def top_pixels(H: Tensor, S: int, sizes: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The S highest pixels of the blurred map as flat indices, and which of them are missing."""
    height, width = H.shape[-2:]
    if sizes is None:
        scores = blur(H).flatten(1)  # (M, HW)
    else:
        inside = (torch.arange(height, device=H.device) < sizes[:, :1])[:, :, None]
        inside = inside & (torch.arange(width, device=H.device) < sizes[:, 1:])[:, None]
        scores = blur(replicate(H, sizes)).masked_fill(~inside, -math.inf).flatten(1)
    lacking = S if torch.compiler.is_exporting() else S - scores.shape[1]  # one graph serves all sizes
    if lacking > 0:
        scores = fn.pad(scores, (0, lacking), value=-math.inf)
    values, indices = scores.topk(S)
    if sizes is None and lacking <= 0:
        return indices, None
    return indices.clamp(max=height * width - 1), values == -math.inf


def pooled_pixels(H: Tensor, S: int, counts: Sequence[int], sizes: Sequence[Size]) -> Tensor:
    """The highest pixel of each of S cells of a grid, with more cells along the longer side."""
    few = max(n for n in range(1, math.isqrt(S) + 1) if S % n == 0)
    indices, padded_width = [], H.shape[-1]
    for h, (height, width) in zip(H.split(list(counts)), sizes, strict=True):
        grid = (few, S // few) if width >= height else (S // few, few)
        _, flat = fn.adaptive_max_pool2d(h[:, :height, :width], grid, return_indices=True)  # eq. 11
        indices.append((flat // width * padded_width + flat % width).flatten(1))
    return torch.cat(indices)  # (M, S)


def compatible_pixels(
    H: Tensor, config: ModelConfig, counts: Sequence[int], valid_sizes: ValidSizes | None
) -> tuple[Tensor, Tensor | None]:
    """H_index (M, S), and which of it are missing where fewer than S pixels are valid."""
    H = H.detach()
    if config.selection == "maxpool":
        whole = [(H.shape[1], H.shape[2])] * len(counts)
        return pooled_pixels(H, config.pixels, counts, valid_sizes.sizes if valid_sizes else whole), None
    sizes = None
    if valid_sizes is not None and any(size != tuple(H.shape[-2:]) for size in valid_sizes.sizes):
        sizes = torch.tensor(valid_sizes.sizes, device=H.device).repeat_interleave(
            torch.tensor(counts, device=H.device), dim=0, output_size=len(H)
        )  # (M, 2)
    return top_pixels(H, config.pixels, sizes)


def sample(F: Tensor, indices: Tensor, counts: Sequence[int]) -> Tensor:
    """H_f (M, S, C): the pixels of each query's image at its indices."""
    if len(counts) == 1:  # without a transposed copy of all pixels
        (columns,) = pixel_columns(F)  # (C, HW)
        if channels_last(F):
            return columns.T.index_select(0, indices.flatten()).view(*indices.shape, F.shape[1])
        chosen = columns.index_select(1, indices.flatten())  # (C, M S)
        return chosen.T.reshape(*indices.shape, F.shape[1])
    area = F.shape[-2] * F.shape[-1]
    table = F.flatten(2).transpose(1, 2).reshape(-1, F.shape[1])  # (B HW, C)
    first = torch.arange(len(counts), device=F.device).repeat_interleave(
        torch.tensor(counts, device=F.device), output_size=len(indices)
    )
    flat = indices + first[:, None] * area
    return table.index_select(0, flat.flatten()).view(*indices.shape, F.shape[1])


class MCA(nn.Module):
    """R + multi-head cross-modal attention of each query over its own pixels.

    With one query per softmax, the key projection can be applied to the query and the value projection
    after the weighted mean, so that the S pixels are not projected; a key bias would cancel.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        C, released = config.channels, config.variant == "released"
        self.heads = config.heads
        self.scale = math.sqrt(C / config.heads if released else C)
        self.query = nn.Linear(C, C, bias=released)
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=released)
        self.out = nn.Linear(C, C) if released else nn.Identity()

    def forward(self, R: Tensor, pixels: Tensor, missing: Tensor | None) -> Tensor:
        rows, C = R.shape
        D, d = self.heads, C // self.heads
        query = self.query(R).view(rows, D, d).transpose(0, 1)  # R W5, (D, M, d)
        query = torch.bmm(query, self.key.weight.view(D, d, C)).transpose(0, 1)  # R W5 W6^T, (M, D, C)
        scores = torch.bmm(query, pixels.transpose(1, 2)) / self.scale  # (M, D, S)
        if missing is not None:
            scores = scores.masked_fill(missing[:, None], -math.inf)
        pooled = torch.bmm(scores.softmax(-1), pixels).transpose(0, 1)  # (D, M, C)
        value = torch.bmm(pooled, self.value.weight.view(D, d, C).transpose(1, 2))  # eq. 12, (D, M, d)
        context = value.transpose(0, 1).reshape(rows, C)  # eq. 13
        if self.value.bias is not None:
            context = context + self.value.bias
        return R + self.out(context)  # eq. 14


def mean_pixel(pixels: Tensor, missing: Tensor | None) -> Tensor:
    """The mean (M, C) of the pixels that are not missing."""
    if missing is None:
        return pixels.mean(1)
    present = (~missing).to(pixels.dtype)[..., None]
    return (pixels * present).sum(1) / present.sum(1)


class MUTAN(nn.Module):
    """R + the Tucker fusion of the query with its mean pixel, a sum over 10 ranks."""

    RANK = 10

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        C = config.channels
        self.query = nn.Linear(C, C, bias=False)
        self.visual = nn.Linear(C, C, bias=False)
        self.query_ranks = nn.Linear(C, self.RANK * C, bias=False)
        self.visual_ranks = nn.Linear(C, self.RANK * C, bias=False)
        self.out = nn.Linear(C, C, bias=False)

    def forward(self, R: Tensor, pixels: Tensor, missing: Tensor | None) -> Tensor:
        q = self.query(R).tanh()
        u = self.visual(mean_pixel(pixels, missing)).tanh()
        ranks = self.query_ranks(q) * self.visual_ranks(u)  # (M, 10 C)
        return R + self.out(ranks.unflatten(1, (self.RANK, R.shape[1])).sum(1))


class SK(nn.Module):
    """A gate per channel that mixes the query with its mean pixel."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Linear(config.channels, config.channels, bias=False)

    def forward(self, R: Tensor, pixels: Tensor, missing: Tensor | None) -> Tensor:
        v = mean_pixel(pixels, missing)
        a = self.weight(R * v).sigmoid()
        return a * v + (1 - a) * R


AGGREGATIONS = {"mca": MCA, "mutan": MUTAN, "sk": SK}


class LCPARound(nn.Module):
    """What both variants share: R^l and its pixels -> R^(l+1) and its projection for matching."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        C = config.channels
        self.aggregate = AGGREGATIONS[config.aggregation](config)
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.ffn = nn.Sequential(nn.Linear(C, 8 * C), nn.ReLU(), nn.Linear(8 * C, C))

    def context(self, R: Tensor, pixels: Tensor | None, missing: Tensor | None) -> Tensor:
        """R^: the query with its visual context, or without pixels (S = 0) the query itself."""
        return R if pixels is None else self.aggregate(R, pixels, missing)


class ReleasedRound(LCPARound):
    """The released code: norms after the residuals, hidden layers with a norm and no bias."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        C = config.channels
        hidden = [m for _ in range(3) for m in (nn.Linear(C, C, bias=False), nn.LayerNorm(C), nn.ReLU())]
        self.mlp = nn.Sequential(*hidden, nn.Linear(C, C))

    def forward(self, R: Tensor, pixels: Tensor | None, missing: Tensor | None) -> tuple[Tensor, Tensor]:
        R = self.norm1(self.context(R, pixels, missing))
        R = self.norm2(R + self.ffn(R))  # R^(l+1)
        return R, self.mlp(R)


class PaperRound(LCPARound):
    """The paper's equations."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        C = config.channels
        hidden = [m for _ in range(3) for m in (nn.Linear(C, C), nn.ReLU())]
        self.mlp = nn.Sequential(*hidden, nn.Linear(C, C))

    def forward(self, R: Tensor, pixels: Tensor | None, missing: Tensor | None) -> tuple[Tensor, Tensor]:
        R = self.context(R, pixels, missing)  # R^
        R = self.norm2(self.ffn(self.norm1(R))) + R  # eq. 15, R^(l+1)
        return R, self.mlp(R)
