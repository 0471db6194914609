"""Stage one of the small two-stage system: learned queries propose masks on PPMN's own pixels.

Two groups of queries, for single things and for regions (stuff, and things whose number is unknown).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.model.neck import sine_position
from ppmn.model.pointing import Attention
from ppmn.model.pyramid import Pyramid

_STRIDE = 2  # of p4, in pixels of F


@dataclass(frozen=True)
class QueryMasks:
    """What the queries of a batch propose after one layer; instances come before regions."""

    masks: Tensor  # logits, (B, Q, H, W)
    scores: Tensor  # logits that a query has found a segment, (B, Q)

    def float(self) -> "QueryMasks":
        """In single precision."""
        return QueryMasks(self.masks.float(), self.scores.float())


class QueryLayer(nn.Module):
    """Queries attend to the image where their last mask is, then to each other; then an FFN."""

    def __init__(self, channels: int, ffn: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.attend_image = Attention(channels, channels, channels)
        self.attend_self = Attention(channels, channels, channels)
        self.ffn = nn.Sequential(nn.Linear(channels, ffn), nn.GELU(), nn.Linear(ffn, channels))

    def forward(self, q: Tensor, position: Tensor, image: Tensor, seen: Tensor) -> Tensor:
        """Queries q (B, Q, C) with their positions (Q, C), image (B, n, C) and what is seen of it."""
        memory = self.attend_image.memory(image)
        q = self.norms[0](q + self.attend_image(q + position, memory, seen))
        own = q + position
        q = self.norms[1](q + self.attend_self(own, self.attend_self.memory(own)))
        return self.norms[2](q + self.ffn(q))


class MaskQueries(nn.Module):
    """F and p4 of a batch -> masks and scores of all queries, before the first and after each layer."""

    def __init__(self, channels: int, *, instances: int, regions: int, layers: int, ffn: int) -> None:
        super().__init__()
        C, self.instances = channels, instances
        self.content = nn.Parameter(torch.randn(instances + regions, C))
        self.position = nn.Parameter(torch.randn(instances + regions, C))
        self.image = nn.Linear(C, C)
        self.layers = nn.ModuleList(QueryLayer(C, ffn) for _ in range(layers))
        self.norm = nn.LayerNorm(C)
        self.mask = nn.Sequential(nn.Linear(C, C), nn.GELU(), nn.Linear(C, C), nn.GELU(), nn.Linear(C, C))
        self.score = nn.Linear(C, 1)

    def forward(self, pyramid: Pyramid, F: Tensor) -> list[QueryMasks]:
        """Proposals of every layer, the last one at the end; F is the neck's, (B, C, H, W)."""
        p4, valid = pyramid.levels[2], pyramid.mask(2)
        sizes = pyramid.valid_sizes
        position = sine_position(p4, sizes and sizes.at(stride=4))
        image = self.image((p4 + position).flatten(2).transpose(1, 2))  # (B, n, C)
        inside = None if valid is None else valid.flatten(1)[:, None] > 0  # (B, 1, n)
        q = self.content.expand(len(p4), -1, -1)
        found = [self.predict(q, F)]
        for layer in self.layers:
            q = layer(q, self.position, image, self.seen(found[-1].masks, inside))
            found.append(self.predict(q, F))
        return found

    def predict(self, q: Tensor, F: Tensor) -> QueryMasks:
        """Masks as products of queries and pixels, as of phrases and pixels in PPMN."""
        q = self.norm(q)
        masks = torch.einsum("bqc,bchw->bqhw", self.mask(q), F)
        return QueryMasks(masks, self.score(q)[..., 0])

    def seen(self, masks: Tensor, inside: Tensor | None) -> Tensor:
        """Where queries look, (B, 1, Q, n): their masks, or everything where a mask is empty."""
        covered = fn.avg_pool2d(masks.detach(), _STRIDE).flatten(2) > 0  # (B, Q, n)
        covered = covered if inside is None else covered & inside
        everything = torch.ones_like(covered) if inside is None else inside.expand_as(covered)
        return torch.where(covered.any(2, keepdim=True), covered, everything)[:, None]
