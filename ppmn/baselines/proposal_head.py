"""Stage one as a whole: the neck, and what proposes masks on its pixels."""

from typing import Literal

import torch
from torch import Tensor, nn

from ppmn.baselines.mask_queries import MaskQueries, QueryMasks
from ppmn.baselines.region_vectors import ImageRegions, ProposedMasks, Regions, partition, region_vectors
from ppmn.config import PointingConfig
from ppmn.model.neck import SemanticFPN
from ppmn.model.pointing import TOKEN_STRIDE, Pointing
from ppmn.model.pyramid import Pyramid

Proposer = Literal["queries", "objects"]
GRID = 2  # tokens between the points at which objects are drawn
SAME = 0.7  # IoU above which two drawn objects are one
_AT_A_TIME = 64  # objects


class ProposalHead(nn.Module):
    """A feature pyramid -> masks of what may be a segment, whatever it is.

    Its neck and pointing have the names that they have in a PPMN, so that `--init` fills them from one.
    """

    def __init__(
        self,
        channels: tuple[int, int, int],
        *,
        queries: tuple[int, int],
        layers: int,
        ffn: int,
        pointing: PointingConfig | None,
    ) -> None:
        """Channels of p2..p5, of tokens and of words; queries for instances and for regions."""
        super().__init__()
        channels_v, channels_t, channels_r = channels
        self.neck = SemanticFPN(channels_v)
        self.queries: MaskQueries | None = None
        self.pointing: Pointing | None = None
        if pointing:
            self.pointing = Pointing(channels_t, channels_v, channels_r, pointing)
        else:
            sizes = {"instances": queries[0], "regions": queries[1], "layers": layers, "ffn": ffn}
            self.queries = MaskQueries(channels_v, **sizes)

    def propose(self, pyramid: Pyramid, F: Tensor) -> list[ProposedMasks]:
        """The masks that are proposed for each image, (H, W) of its own, not yet a partition."""
        found = self._by_queries(pyramid, F) if self.queries else self._by_points(pyramid, F)
        sizes = pyramid.valid_sizes.at(stride=2).sizes if pyramid.valid_sizes else [F.shape[2:]] * len(F)
        return [
            ProposedMasks(own.probabilities[:, :height, :width], own.scores, own.instance)
            for own, (height, width) in zip(found, sizes, strict=True)
        ]

    def _by_queries(self, pyramid: Pyramid, F: Tensor) -> list[ProposedMasks]:
        assert self.queries is not None
        last: QueryMasks = self.queries(pyramid, F)[-1].float()
        instance = torch.arange(last.scores.shape[1], device=F.device) < self.queries.instances
        return [
            ProposedMasks(masks.sigmoid(), scores.sigmoid(), instance)
            for masks, scores in zip(last.masks, last.scores, strict=True)
        ]

    def _by_points(self, pyramid: Pyramid, F: Tensor) -> list[ProposedMasks]:
        """The objects at the points of a grid, without duplicates."""
        assert self.pointing is not None
        features = self.pointing.encode(pyramid, F)
        height, width = pyramid.tokens.shape[2:]
        rows, columns = torch.arange(0, height, GRID), torch.arange(0, width, GRID)
        points = (rows[:, None] * width + columns).flatten().to(F.device)
        found = []
        for image in range(len(F)):
            own = points if features.valid is None else points[features.valid[image, points]]
            counts = [len(part) for part in own.split(_AT_A_TIME)]
            single = [[count if b == image else 0 for b in range(len(F))] for count in counts]
            parts = zip(own.split(_AT_A_TIME), single, strict=True)
            drawn = torch.cat([self.pointing.draw_objects(at, features, each) for at, each in parts])
            found.append(distinct_objects(drawn.float().sigmoid(), own, width))
        return found

    def regions(self, pyramid: Pyramid, F: Tensor, min_score: float) -> Regions:
        """The partition of each image, and a vector of each region."""
        images = []
        for number, proposed in enumerate(self.propose(pyramid, F)):
            masks, kept = partition(proposed, min_score)
            height, width = proposed.probabilities.shape[1:]
            tokens = pyramid.tokens[number, :, : height // TOKEN_STRIDE, : width // TOKEN_STRIDE]
            pixels = F[number, :, :height, :width]
            vectors = region_vectors(masks > 0.5, tokens, pixels, proposed.scores[kept])
            images.append(ImageRegions(masks, vectors))
        return Regions(tuple(images), (F.shape[2], F.shape[3]))


def distinct_objects(drawn: Tensor, points: Tensor, width: int) -> ProposedMasks:
    """Drawn objects (N, H, W) without duplicates; an object scores by how surely it is drawn.

    Its score is the mean probability inside of its mask, times the part of it that its own point saw: 0 where
    the point lies outside of what was drawn from it.
    """
    inside = drawn > 0.5
    area = inside.flatten(1).sum(1)
    surety = (drawn * inside).flatten(1).sum(1) / area.clamp(min=1)
    rows, columns = points // width * TOKEN_STRIDE, points % width * TOKEN_STRIDE
    own = inside[torch.arange(len(points), device=drawn.device), rows, columns]
    scores = surety * own
    flat = inside.flatten(1).float()
    both = flat @ flat.T
    overlap = both / (area[:, None] + area - both).clamp(min=1)
    kept: list[int] = []
    for number in torch.argsort(scores, descending=True).tolist():
        if scores[number] > 0 and not (overlap[number, kept] > SAME).any():
            kept.append(number)
    index = torch.tensor(kept, dtype=torch.long, device=drawn.device)
    return ProposedMasks(drawn[index], scores[index], torch.ones_like(index, dtype=torch.bool))
