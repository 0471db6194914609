"""From proposed masks to regions: the partition of an image, and one vector per region."""

from dataclasses import dataclass

import torch
import torch.nn.functional as fn
from torch import Tensor

from ppmn.model.pointing import TOKEN_STRIDE
from ppmn.model.pyramid import Features

TAKEN = 0.5  # a mask of which more than this part is taken by better ones is dropped
SMALLEST = 0.002  # of the image: smaller regions are dropped
BOX_NUMBERS = 7  # x1, y1, x2, y2, width, height, area


@dataclass(frozen=True)
class ProposedMasks:
    """The masks that stage one proposes for one image, before the partition; they may overlap."""

    probabilities: Tensor  # (N, H, W)
    scores: Tensor  # (N,), from 0 to 1
    instance: Tensor  # bool (N,), of a single thing; they come first in the partition


@dataclass(frozen=True)
class ImageRegions:
    """The regions of one image, which do not overlap."""

    masks: Tensor  # probabilities, (R, H, W); 0 where another region is
    vectors: Tensor  # (R, C): mean features and the score of each region

    @property
    def inside(self) -> Tensor:
        """The regions as masks, bool (R, H, W)."""
        return self.masks > 0.5

    @property
    def inputs(self) -> Tensor:
        """What stage two reads of each region: its vector and its box, (R, C + 7)."""
        return torch.cat([self.vectors, region_boxes(self.inside).to(self.vectors.dtype)], 1)

    def features(self) -> Features:
        """What a cache keeps: vectors, and the number of the region of each pixel, from 1."""
        numbers = torch.arange(1, len(self.masks) + 1, device=self.masks.device)
        ids = (self.inside * numbers[:, None, None]).sum(0)  # (H, W)
        return {"vectors": self.vectors, "ids": ids[None].to(self.vectors.dtype)}

    @classmethod
    def of_features(cls, features: Features) -> "ImageRegions":
        """What `features` gave, without the soft edges of the masks."""
        vectors, ids = features["vectors"], features["ids"][0]
        numbers = torch.arange(1, len(vectors) + 1, device=ids.device)
        return cls((ids.round() == numbers[:, None, None]).to(vectors.dtype), vectors)


@dataclass(frozen=True)
class Regions:
    """The regions of a batch of images."""

    images: tuple[ImageRegions, ...]
    size: tuple[int, int]  # of the maps

    def single(self, index: int) -> "Regions":
        """Those of one image."""
        return Regions(self.images[index : index + 1], self.size)


def partition(proposed: ProposedMasks, min_score: float) -> tuple[Tensor, Tensor]:
    """Masks that do not overlap (R, H, W), and which proposals they are (R,).

    By falling score, instances first: a mask that is mostly taken is dropped, others keep what is free.
    """
    inside = proposed.probabilities > 0.5
    free = torch.ones(inside.shape[1:], dtype=torch.bool, device=inside.device)
    smallest, kept, parts = max(SMALLEST * free.numel(), 1), [], []
    for number in torch.argsort(proposed.scores + 2 * proposed.instance, descending=True).tolist():
        own = inside[number] & free
        area = int(own.sum())
        taken = area < (1 - TAKEN) * int(inside[number].sum())
        if proposed.scores[number] < min_score or area < smallest or taken:
            continue
        free = free & ~own
        kept.append(number)
        parts.append(own)
    index = torch.tensor(kept, dtype=torch.long, device=inside.device)
    if not parts:
        return proposed.probabilities[:0], index
    return _soft_parts(proposed.probabilities[index], torch.stack(parts)), index


def _soft_parts(probabilities: Tensor, parts: Tensor) -> Tensor:
    """Probabilities of each part, 0 where another part is: so edges are as fine as those of PPMN's maps."""
    taken = parts.any(0) & ~parts  # (R, H, W)
    return probabilities.masked_fill(taken, 0)


def region_vectors(masks: Tensor, tokens: Tensor, F: Tensor, scores: Tensor) -> Tensor:
    """The mean over each mask (R, H, W) of tokens (C_t, h, w) and of F (C_v, H, W), and its score."""
    weight = masks.to(F.dtype)
    coarse = fn.avg_pool2d(weight[:, None], TOKEN_STRIDE).flatten(1)  # (R, n)
    fine = weight.flatten(1)
    on_tokens = coarse @ tokens.flatten(1).T.to(F.dtype) / coarse.sum(1, keepdim=True).clamp(min=1e-6)
    on_pixels = fine @ F.flatten(1).T / fine.sum(1, keepdim=True).clamp(min=1e-6)
    return torch.cat([on_tokens, on_pixels, scores[:, None].to(F.dtype)], 1)


def region_boxes(masks: Tensor) -> Tensor:
    """x1, y1, x2, y2, width, height and area of masks (R, H, W) in fractions of the image, (R, 7)."""
    height, width = masks.shape[1:]
    sides = []
    for touched, length in ((masks.any(1), width), (masks.any(2), height)):
        first = touched.int().argmax(1)
        last = length - touched.flip(1).int().argmax(1)
        sides.append((first / length, last / length))
    (x1, x2), (y1, y2) = sides
    area = masks.flatten(1).sum(1) / (height * width)
    return torch.stack([x1, y1, x2, y2, x2 - x1, y2 - y1, area], 1)


def best_regions(segments: Tensor, regions: Tensor, valid: Tensor) -> Tensor:
    """The IoU of every segment (K, H, W) with every region (R, H, W) on valid pixels, (K, R)."""
    ours, theirs = ((m & valid).flatten(1).float() for m in (segments, regions))
    both = ours @ theirs.T
    return both / (ours.sum(1)[:, None] + theirs.sum(1) - both).clamp(min=1)


def matched_regions(members: Tensor, overlap: Tensor) -> Tensor:
    """For each phrase (P, K) the best region of each of its segments, by IoU (K, R): (P, R) of 0 and 1.

    A region is right however low its IoU; a segment that no region overlaps has none.
    """
    best = torch.zeros_like(overlap)
    if overlap.numel():
        found = overlap.amax(1) > 0
        best[found, overlap[found].argmax(1)] = 1
    return (members.to(best.dtype) @ best).clamp(max=1)
