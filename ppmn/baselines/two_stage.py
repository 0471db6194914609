"""The second stage of the two-stage baseline (González et al., ICCV 2021): words and regions -> affinity.

The modules have the names of the released checkpoint, whose tensors all begin with `RELEASED_PREFIX`.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.baselines.bert_layers import (
    EPS,
    BertLayer,
    CrossAttention,
    Expansion,
    LayerShape,
    Residual,
    SelfAttention,
    key_mask,
)
from ppmn.baselines.packing import Packing
from ppmn.config import TWO_STAGE
from ppmn.errors import InputError
from ppmn.files import from_dict, read_json

RELEASED_PREFIX = "bert_encoder.model.bert."


@dataclass(frozen=True)
class TwoStageConfig:
    """Sizes as released; where the released code is at fault, the default is the repaired behaviour."""

    width: int = 768
    heads: int = 12
    ffn: int = 3072
    language_layers: int = 12
    region_layers: int = 3
    cross_layers: int = 5
    region_size: int = 50_176  # numbers per region: 256 x 14 x 14 of a thing, 224 x 224 of stuff
    vocabulary: int = 30_522
    positions: int = 512
    dropout: float = 0.1
    max_pieces: int = 230  # a caption is cut to so many word pieces, with [CLS] and [SEP]
    plural_rule: Literal["text", "truth"] = "text"  # who says that several regions are wanted
    words: Literal["pieces", "words"] = "pieces"  # "words" numbers the rows of pieces by words, a fault
    mask_regions: bool = True  # False: padded regions are attended to and can be chosen
    plural_threshold: float = 0.1  # probability above which a region belongs to a plural phrase

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise InputError(f"width is {self.width}; it must be a multiple of heads = {self.heads}")
        if math.isqrt(max(self.region_size, 0)) ** 2 != self.region_size or self.region_size < 1:
            raise InputError(f"region_size is {self.region_size}; maps of stuff need a square number")
        if not 3 <= self.max_pieces <= self.positions:
            raise InputError(f"max_pieces is {self.max_pieces}; it must be 3 to positions = {self.positions}")
        if not 0 <= self.plural_threshold <= 1:
            raise InputError(f"plural_threshold is {self.plural_threshold}; it must lie between 0 and 1")

    @property
    def stuff_side(self) -> int:
        """Side of the square map that describes a region of stuff: 224."""
        return math.isqrt(self.region_size)

    def save(self, file: Path) -> None:
        """Write the configuration as JSON."""
        content = {"method": TWO_STAGE, **asdict(self)}
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> "TwoStageConfig":
        """Read a saved configuration; unknown fields and values are refused by name."""
        raw = read_json(file)
        method = raw.pop("method", None) if isinstance(raw, dict) else None
        if method != TWO_STAGE:
            raise InputError(f"{file} names the method {method!r}, not {TWO_STAGE!r}")
        config: TwoStageConfig = from_dict(cls, raw, str(file))
        return config


class Embeddings(nn.Module):
    """LN(word + position + type) of word pieces; all of type 0."""

    def __init__(self, config: TwoStageConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocabulary, config.width)
        self.position_embeddings = nn.Embedding(config.positions, config.width)
        self.token_type_embeddings = nn.Embedding(2, config.width)
        self.LayerNorm = nn.LayerNorm(config.width, eps=EPS)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word_embeddings(ids) + self.token_type_embeddings.weight[0]  # (B, T, width)
        x = x + self.position_embeddings.weight[: ids.shape[1]]
        return self.dropout(self.LayerNorm(x))


class RegionInput(nn.Module):
    """V = (LN(W_f f + b_f) + LN(W_b box + b_b)) / 2."""

    def __init__(self, config: TwoStageConfig) -> None:
        super().__init__()
        self.visn_fc = nn.Linear(config.region_size, config.width)
        self.visn_layer_norm = nn.LayerNorm(config.width, eps=EPS)
        self.box_fc = nn.Linear(4, config.width)
        self.box_layer_norm = nn.LayerNorm(config.width, eps=EPS)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, features: Tensor, boxes: Tensor) -> Tensor:
        x = self.visn_layer_norm(self.visn_fc(features))  # (B, P, width)
        y = self.box_layer_norm(self.box_fc(boxes))  # (B, P, width)
        return self.dropout((x + y) / 2)


class CrossLayer(nn.Module):
    """One cross-attention used in both directions, then self-attention and FFN of each side."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.visual_attention = CrossAttention(shape)
        self.lang_self_att = SelfAttention(shape)
        self.visn_self_att = SelfAttention(shape)
        self.lang_inter = Expansion(shape)
        self.lang_output = Residual(shape.ffn, shape)
        self.visn_inter = Expansion(shape)
        self.visn_output = Residual(shape.ffn, shape)

    def forward(
        self,
        L: Tensor,
        V: Tensor,
        word_mask: Tensor,
        region_mask: Tensor | None,
        packed: tuple[Packing, Packing] | tuple[None, None] = (None, None),
    ) -> tuple[Tensor, Tensor]:
        words, regions = packed
        seen = self.visual_attention(L, V, region_mask, words, regions)
        read = self.visual_attention(V, L, word_mask, regions, words)
        L = self.lang_self_att(seen, word_mask, words)  # (B, T, width)
        V = self.visn_self_att(read, region_mask, regions)  # (B, P, width)
        return self.lang_output(self.lang_inter(L), L), self.visn_output(self.visn_inter(V), V)


class CrossEncoder(nn.Module):
    """Words alone, regions alone, then both."""

    def __init__(self, config: TwoStageConfig) -> None:
        super().__init__()
        shape = LayerShape(config.width, config.heads, config.ffn, config.dropout)
        self.visn_fc = RegionInput(config)
        self.layer = nn.ModuleList(BertLayer(shape) for _ in range(config.language_layers))
        self.single_layers = nn.ModuleList(BertLayer(shape) for _ in range(config.region_layers))
        self.cross_layers = nn.ModuleList(CrossLayer(shape) for _ in range(config.cross_layers))

    def forward(
        self, L: Tensor, V: Tensor, word_mask: Tensor, region_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        for layer in self.layer:
            L = layer(L, word_mask)
        for layer in self.single_layers:
            V = layer(V, region_mask)
        for layer in self.cross_layers:
            L, V = layer(L, V, word_mask, region_mask)
        return L, V


class Pooler(nn.Module):
    """Part of the checkpoint; nothing reads its output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)


class TwoStage(nn.Module):
    """Word pieces, region features and boxes -> the affinity of every piece with every region."""

    def __init__(self, config: TwoStageConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = CrossEncoder(config)
        self.pooler = Pooler(config.width)

    def forward(self, ids: Tensor, words: Tensor, features: Tensor, boxes: Tensor, regions: Tensor) -> Tensor:
        """The affinity A (B, T, P).

        Args:
            ids: Word pieces with [CLS] and [SEP], (B, T).
            words: Which of them are not padding, (B, T).
            features: Numbers of each region, (B, P, region_size).
            boxes: x, y, width and height in pixels of the image, (B, P, 4).
            regions: Which regions are not padding, (B, P); not read if `mask_regions` is false.
        """
        region_mask = key_mask(regions) if self.config.mask_regions else None
        L = self.embeddings(ids)  # (B, T, width)
        V = self.encoder.visn_fc(features, boxes)  # (B, P, width)
        L, V = self.encoder(L, V, key_mask(words), region_mask)
        return L @ V.transpose(1, 2)  # A, (B, T, P)


def phrase_scores(A: Tensor, N: Tensor) -> Tensor:
    """S = N^T A / words, (B, n, P): affinities averaged over the rows that N (B, T, n) marks."""
    return N.transpose(1, 2) @ A / (N.sum(1)[..., None] + 1e-7)


def matching_loss(S: Tensor, Y: Tensor, cells: Tensor | None = None) -> Tensor:
    """Binary cross-entropy averaged over `cells` (B, n, P), or over all phrases and regions as released.

    An empty phrase slot has score 0 and target 0: it adds ln 2 to the sum and no gradient.
    """
    if cells is None:
        return fn.binary_cross_entropy_with_logits(S, Y)
    weight = cells.to(S.dtype)
    loss = fn.binary_cross_entropy_with_logits(S, Y, weight=weight, reduction="sum")
    return loss / torch.clamp(weight.sum(), min=1)
