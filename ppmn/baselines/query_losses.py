"""Which query is to find which segment, by Hungarian matching, and the losses of stage one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as fn
from torch import Tensor

from ppmn.baselines.mask_queries import QueryMasks
from ppmn.model.method import SegmentTargets

_SMOOTH = 1e-3  # of Dice, as in PPMN's squared form


@dataclass(frozen=True)
class QueryGroup:
    """One group of queries of one image and the segments that it is to find."""

    rows: slice  # of the queries
    masks: Tensor  # (K, H W), of the segments
    valid: Tensor  # (H W,), pixels that count in the masks
    labelled: (
        Tensor | None
    )  # (H W,), pixels whose segment would be known; None: "no segment" is never charged


def query_groups(target: SegmentTargets, instances: int, size: tuple[int, int]) -> list[QueryGroup]:
    """The two groups of an image, padded to a size; partial labels are respected.

    A thing of unknown number is a target of the regions, and nothing is known of instances inside it. Where
    stuff is not annotated nothing is known of regions, where a source is incomplete of both.
    """
    padding = (0, size[1] - target.valid.shape[1], 0, size[0] - target.valid.shape[0])
    masks = fn.pad(target.masks, padding).flatten(1).float()  # (K, H W)
    valid = fn.pad(target.valid, padding).flatten()
    counted = valid & ~(masks[target.crowd].any(0) if target.crowd.any() else torch.zeros_like(valid))
    labels = (
        counted if target.complete else None,
        valid if target.complete and target.has_stuff else None,
    )
    rows = (slice(0, instances), slice(instances, None))
    kinds = (masks[target.instance], masks[~target.instance])
    return [
        QueryGroup(own, group, valid.float(), known)
        for own, group, known in zip(rows, kinds, labels, strict=True)
    ]


def pair_costs(masks: Tensor, Y: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """BCE and Dice of every query (Q, n) with every segment (K, n), (Q, K) each."""
    M = masks.sigmoid() * valid
    Y = Y * valid
    bce = (fn.softplus(masks) * valid).sum(1)[:, None] - (masks * valid) @ Y.T
    both = 2 * M @ Y.T
    dice = 1 - both / (M.square().sum(1)[:, None] + Y.sum(1) + 2 * _SMOOTH)
    return bce / valid.sum().clamp(min=1), dice


@torch.no_grad()
def assign(masks: Tensor, scores: Tensor, group: QueryGroup) -> tuple[Tensor, Tensor]:
    """The queries and the segments that belong together, by the least sum of costs."""
    from scipy.optimize import linear_sum_assignment  # of the extra train: the losses alone need it

    bce, dice = pair_costs(masks, group.masks, group.valid)
    cost = bce + dice - scores.sigmoid()[:, None]
    queries, segments = linear_sum_assignment(cost.double().cpu().numpy())
    return torch.as_tensor(queries, device=masks.device), torch.as_tensor(segments, device=masks.device)


@dataclass
class QuerySums:
    """Sums of the three terms, and what they are divided by."""

    bce: Tensor
    dice: Tensor
    score: Tensor
    pairs: int = 0
    charged: float = 0.0

    def add(self, masks: Tensor, scores: Tensor, group: QueryGroup) -> None:
        """Add one group of one image: masks (Q, n) and scores (Q,) of its queries."""
        queries, segments = assign(masks, scores, group)
        own, Y = masks[queries], group.masks[segments]
        bce = fn.binary_cross_entropy_with_logits(own, Y, weight=group.valid.expand_as(Y), reduction="sum")
        self.bce = self.bce + bce / group.valid.sum().clamp(min=1)
        M, true = own.sigmoid() * group.valid, Y * group.valid
        norm = M.square().sum(1) + true.sum(1) + 2 * _SMOOTH
        self.dice = self.dice + (1 - 2 * (M * true).sum(1) / norm).sum()
        wanted = torch.zeros_like(scores)
        wanted[queries] = 1
        weight = torch.maximum(wanted, charged_queries(masks, group))
        loss = fn.binary_cross_entropy_with_logits(scores, wanted, weight=weight, reduction="sum")
        self.score = self.score + loss
        self.pairs += len(queries)
        self.charged += float(weight.sum())


def charged_queries(masks: Tensor, group: QueryGroup) -> Tensor:
    """Which queries (Q,) are wrong if no segment is theirs: most of their mask is on labelled pixels."""
    if group.labelled is None:
        return masks.new_zeros(len(masks))
    inside = (masks.detach() > 0).float()
    return ((inside * group.labelled).sum(1) > inside.sum(1) / 2).to(masks.dtype)


def proposal_losses(
    found: Sequence[QueryMasks], targets: Sequence[SegmentTargets], instances: int
) -> dict[str, Tensor]:
    """BCE, Dice and score of all layers: sums over layers of means over the matched pairs and queries."""
    height, width = found[0].masks.shape[-2:]
    groups = [query_groups(target, instances, (height, width)) for target in targets]
    zero = found[0].masks.sum() * 0
    total = {"bce": zero, "dice": zero, "score": zero}
    for layer in found:
        sums = QuerySums(zero, zero, zero)
        for masks, scores, own in zip(layer.masks.flatten(2), layer.scores, groups, strict=True):
            for group in own:
                sums.add(masks[group.rows], scores[group.rows], group)
        total["bce"] = total["bce"] + sums.bce / max(sums.pairs, 1)
        total["dice"] = total["dice"] + sums.dice / max(sums.pairs, 1)
        total["score"] = total["score"] + sums.score / max(sums.charged, 1)
    return total
