"""Stage two of the small two-stage system: words and regions attend to each other, then their affinity."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ppmn.baselines.bert_layers import BertLayer, LayerShape, key_mask
from ppmn.baselines.region_vectors import stack_padded
from ppmn.baselines.two_stage import CrossLayer, phrase_scores
from ppmn.model.text import Tokens


class RegionMatcher(nn.Module):
    """The layers of the published second stage at a smaller width, on word pieces of a text encoder."""

    def __init__(self, c_regions: int, c_words: int, shape: LayerShape, cross_layers: int) -> None:
        super().__init__()
        self.regions = nn.Sequential(nn.Linear(c_regions, shape.width), nn.LayerNorm(shape.width))
        self.words = nn.Sequential(nn.Linear(c_words, shape.width), nn.LayerNorm(shape.width))
        self.region_layer = BertLayer(shape)
        self.cross_layers = nn.ModuleList(CrossLayer(shape) for _ in range(cross_layers))
        self.scale = math.sqrt(shape.width)

    def forward(
        self, regions: Sequence[Tensor], words: Sequence[Tensor], captions: Sequence[Tokens]
    ) -> list[Tensor]:
        """The scores (P, R) of each caption's phrases and its image's regions, as logits.

        Args:
            regions: Vectors of the regions (R, C) of each caption's image.
            words: Vectors of its word pieces (t, C_r).
            captions: Which word pieces belong to which phrase.
        """
        V, seen = stack_padded(regions)  # (B, R, C), (B, R)
        L, read = stack_padded(words)  # (B, T, C_r), (B, T)
        seen = seen | (torch.arange(seen.shape[1], device=seen.device) == 0)  # an image without regions
        region_mask, word_mask = key_mask(seen), key_mask(read)
        V, L = self.region_layer(self.regions(V), region_mask), self.words(L)
        for layer in self.cross_layers:
            L, V = layer(L, V, word_mask, region_mask)
        A = L @ V.transpose(1, 2) / self.scale  # (B, T, R)
        N = A.new_zeros(*A.shape[:2], max(len(c.pieces) for c in captions))
        for b, caption in enumerate(captions):
            for n, pieces in enumerate(caption.pieces):
                N[b, list(pieces), n] = 1
        S = phrase_scores(A, N)  # (B, P, R)
        sizes = ((len(c.pieces), len(r)) for c, r in zip(captions, regions, strict=True))
        return [own[:phrases, :count] for own, (phrases, count) in zip(S, sizes, strict=True)]
