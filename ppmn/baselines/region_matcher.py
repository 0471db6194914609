"""Stage two of the small two-stage system: words and regions attend to each other, then their affinity."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.baselines.bert_layers import BertLayer, LayerShape, key_mask
from ppmn.baselines.packing import Packing
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
        counts = [len(own) for own in regions]
        words, regions = _with_a_row(words), _with_a_row(regions)
        read, seen = (Packing.of([len(own) for own in side], words[0].device) for side in (words, regions))
        read_mask, seen_mask = key_mask(read.valid), key_mask(seen.valid)
        V = self.region_layer(self.regions(torch.cat(regions)), seen_mask, seen)  # (R of all, C)
        L = self.words(torch.cat(words))  # (t of all, C)
        for layer in self.cross_layers:
            L, V = layer(L, V, read_mask, seen_mask, (read, seen))
        A = read.pad(L) @ seen.pad(V).transpose(1, 2) / self.scale  # (B, T, R)
        N = A.new_zeros(*A.shape[:2], max(len(c.pieces) for c in captions))
        for b, caption in enumerate(captions):
            for n, pieces in enumerate(caption.pieces):
                N[b, list(pieces), n] = 1
        S = phrase_scores(A, N)  # (B, P, R)
        sizes = zip((len(c.pieces) for c in captions), counts, strict=True)
        return [own[:phrases, :count] for own, (phrases, count) in zip(S, sizes, strict=True)]


def _with_a_row(side: Sequence[Tensor]) -> list[Tensor]:
    """Matrices of one width, a row of zeros in place of none: an image without regions, an empty caption."""
    return [own if len(own) else fn.pad(own, (0, 0, 0, 1)) for own in side]
