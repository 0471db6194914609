"""Rows of Table 1 that need the annotation: oracles of proposals, and matching with true segments."""

import numpy as np
import pytest
import torch

from ppmn.baselines.query_losses import assign, charged_queries, query_groups
from ppmn.baselines.region_vectors import (
    ImageRegions,
    ProposedMasks,
    best_regions,
    matched_regions,
    partition,
    region_boxes,
)
from ppmn.evaluation.proposal_report import ProposalReport
from ppmn.evaluation.region_rows import best_of_each, best_union, union_of
from ppmn.model.method import SegmentTargets


def stripes(count: int, height: int = 6, width: int = 12) -> list[np.ndarray]:
    """Vertical stripes of one width."""
    columns = np.arange(width) * count // width
    return [np.broadcast_to(columns == n, (height, width)).copy() for n in range(count)]


def test_best_region_of_each_segment_and_best_union() -> None:
    regions = stripes(4)
    wide = regions[0] | regions[1] | (regions[2] & (np.arange(6) < 2)[:, None])
    assert best_of_each([regions[3]], regions) == [3]
    assert best_of_each([wide], regions) == [0]  # one region only, though two cover it better
    assert best_union([wide], regions) == [0, 1]
    nothing = np.zeros_like(wide)
    assert best_of_each([nothing], regions) == best_union([nothing], regions) == []
    assert union_of(regions, [0, 1], wide.shape).sum() == 2 * regions[0].sum()


def test_best_union_is_the_best_of_all_unions() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 6, (12, 12))
    regions = [ids == n for n in range(6)]
    for _ in range(20):
        mask = rng.random((12, 12)) < 0.4
        every = [[n for n in range(6) if number >> n & 1] for number in range(1, 64)]

        def iou(rows: list[int], mask: np.ndarray = mask) -> float:
            union = union_of(regions, rows, mask.shape)
            return (union & mask).sum() / (union | mask).sum()

        assert iou(best_union([mask], regions)) == pytest.approx(max(map(iou, every)))


def test_recall_of_proposals_by_size() -> None:
    corner, half, dot = (np.zeros((20, 20), bool) for _ in range(3))
    corner[:4, :4], half[:, :10], dot[0, 0] = True, True, True  # 4 %, 50 % and 0.25 % of the image
    report = ProposalReport()
    report.add([corner, half, dot], [half, corner & (np.arange(20) < 1)])  # a quarter of the corner
    report.add([half], [])
    assert report.segments == {"under 1 %": 1, "1 to 10 %": 1, "over 10 %": 2}
    assert report.found == {"under 1 %": 0, "1 to 10 %": 0, "over 10 %": 1}
    assert "| all | 4 | 25.0 % |" in report.table()
    assert "1.0 regions per image, 2 images." in report.table()


def test_partition_prefers_instances_and_drops_what_is_taken() -> None:
    maps = torch.zeros(4, 6, 12)
    maps[0, :, :6] = 0.9  # a region with the best score
    maps[1, :, :4] = 0.8  # an instance inside it
    maps[2, :, 1:4] = 0.7  # the same instance again: mostly taken
    maps[3, :, 8:] = 0.9  # its score is too low
    scores, instance = torch.tensor([0.9, 0.6, 0.5, 0.2]), torch.tensor([False, True, True, True])
    masks, kept = partition(ProposedMasks(maps, scores, instance), 0.3)
    assert kept.tolist() == [1]  # of the region less than half is left
    masks, kept = partition(ProposedMasks(maps[:, :, :].clone(), scores, ~instance), 0.3)
    assert kept.tolist() == [0]
    assert ((masks > 0.5).sum(0) <= 1).all()
    none, kept = partition(ProposedMasks(maps, scores, instance), 0.95)
    assert none.shape == (0, 6, 12)
    assert not len(kept)


def test_regions_survive_the_cache() -> None:
    masks = torch.from_numpy(np.stack(stripes(3))).float() * 0.9
    regions = ImageRegions(masks, torch.randn(3, 5))
    again = ImageRegions.of_features(
        {name: value.half().float() for name, value in regions.features().items()}
    )
    assert torch.equal(again.inside, regions.inside)
    assert torch.allclose(again.inputs, regions.inputs, atol=1e-2)
    assert region_boxes(regions.inside)[1].tolist() == pytest.approx([1 / 3, 0, 2 / 3, 1, 1 / 3, 1, 1 / 3])


def test_regions_of_a_phrase_are_the_best_of_each_segment() -> None:
    regions = torch.from_numpy(np.stack(stripes(4)))
    segments = torch.stack([regions[0] | regions[1], regions[3], torch.zeros_like(regions[0])])
    overlap = best_regions(segments, regions, torch.ones_like(regions[0]))
    members = torch.tensor([[True, True, False], [False, False, True]])
    assert matched_regions(members, overlap).tolist() == [[1, 0, 0, 1], [0, 0, 0, 0]]


def targets(complete: bool = True, has_stuff: bool = True) -> SegmentTargets:
    """Two things, a crowd and a piece of stuff, side by side; the last column is not labelled."""
    masks = torch.from_numpy(np.stack(stripes(4)))
    valid = torch.ones(6, 12, dtype=torch.bool)
    valid[:, -1] = False
    flags = torch.tensor([[True, True, False, False], [False, False, True, False]])
    members = torch.ones(1, 4, dtype=torch.bool)
    return SegmentTargets(masks, flags[0], flags[1], members, valid, complete, has_stuff)


def test_groups_find_their_own_segments() -> None:
    instances, regions = query_groups(targets(), 3, (6, 12))
    assert len(instances.masks) == 2
    assert len(regions.masks) == 2  # stuff, and the crowd
    logits = (torch.cat([instances.masks[[1]], instances.masks[[0]], regions.masks[[0]]]) - 0.5) * 20
    queries, segments = assign(logits, torch.zeros(3), instances)
    assert dict(zip(queries.tolist(), segments.tolist(), strict=True)) == {0: 1, 1: 0}


def test_no_segment_is_charged_only_where_it_would_be_known() -> None:
    masks = (torch.from_numpy(np.stack(stripes(4))).flatten(1).float() - 0.5) * 20
    instances, regions = query_groups(targets(), 4, (6, 12))
    assert charged_queries(masks, instances).tolist() == [1, 1, 0, 1]  # nothing is known inside the crowd
    assert charged_queries(masks, regions).tolist() == [1, 1, 1, 1]
    _, regions = query_groups(targets(has_stuff=False), 4, (6, 12))
    assert not charged_queries(masks, regions).any()
    for group in query_groups(targets(complete=False), 4, (6, 12)):
        assert not charged_queries(masks, group).any()
