"""Drawn scenes: exact masks, true narratives, the same again from the same seed."""

import json
import runpy
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from test_narrate import untrue

from ppmn.cli import main
from ppmn.data.narratives import read_narratives
from ppmn.data.panoptic import read_ids, read_panoptic
from ppmn.images import read_image
from ppmn.synthetic.narrator import Narrated, Narrator
from ppmn.synthetic.scenes import categories, draw_scene

COUNT = 60


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    assert (
        main(["data", "scenes", "-o", str(root), "--count", str(COUNT), "--split", "val", "--seed", "3"]) == 0
    )
    return root


def test_enough_kinds() -> None:
    things = [c for c in categories().values() if c.isthing]
    assert len(things) >= 30 and len(categories()) - len(things) >= 8


def test_masks_are_what_the_annotation_says(root: Path) -> None:
    panoptic = read_panoptic(root, "val")
    assert len(panoptic.images) == COUNT
    for image in panoptic.images:
        ids = image.ids()
        assert ids.shape == (240, 320) and read_image(image.file).size == (320, 240)
        areas = {int(i): int(n) for i, n in zip(*np.unique(ids, return_counts=True), strict=True)}
        assert areas == {s.id: s.area for s in image.segments}
        for segment in image.segments:
            x, y, w, h = segment.bbox
            assert (ids[y : y + h, x : x + w] == segment.id).sum() == segment.area
        things = [s for s in image.segments if panoptic.categories[s.category_id].isthing]
        assert 5 <= len(things) <= 12


def test_narratives_hold_on_the_files_and_tell_two_of_a_kind_apart(root: Path) -> None:
    panoptic, apart, grounded = read_panoptic(root, "val"), 0, 0
    problems: list[object] = []
    for narrative in read_narratives(panoptic, problems.append):
        image, told = narrative.image, Narrated(narrative.caption, narrative.phrases)
        assert not untrue(told, image, image.ids(), np.asarray(read_image(image.file))), told.caption
        kinds = {s.id: s.category_id for s in image.segments}
        twins = {k for k, n in Counter(kinds.values()).items() if n > 1}
        apart += any(len(p.segment_ids) == 1 and kinds[p.segment_ids[0]] in twins for p in narrative.phrases)
        grounded += len(narrative.grounded)
    assert not problems
    assert apart >= COUNT / 2 and grounded >= 5 * COUNT


def test_the_same_seed_draws_the_same_files(root: Path, tmp_path: Path) -> None:
    def draw(name: str, *more: str) -> Path:
        assert main(["data", "scenes", "-o", str(tmp_path / name), "--count", "3", *more]) == 0
        return tmp_path / name

    first, again = draw("a", "--split", "val", "--seed", "3"), draw("b", "--split", "val", "--seed", "3")
    other, train = draw("c", "--split", "val", "--seed", "4"), draw("d", "--seed", "3")
    files = sorted(f.relative_to(first) for f in first.rglob("*") if f.is_file())
    assert len(files) == 8
    assert all((first / f).read_bytes() == (again / f).read_bytes() for f in files)
    name = "annotations/panoptic_segmentation/val/000001.png"
    assert (first / name).read_bytes() == (root / name).read_bytes()  # whatever the count
    assert (first / name).read_bytes() != (other / name).read_bytes()
    unseen = train / name.replace("val", "train")
    assert (read_ids(first / name) != read_ids(unseen)).any()  # no scene in two splits


def test_colours_alone_do_not_solve_it(root: Path) -> None:
    bench = runpy.run_path(str(Path(__file__).resolve().parents[2] / "bench" / "scenes.py"))
    named, _ = bench["baselines"](root, "val")
    assert named.average_recall["overall"] < 40
    truths = bench["colour_match"]("red car", np.array([[4, 1]], np.uint8))
    assert truths.tolist() == [[True, False]]


def test_a_split_is_not_drawn_over(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (root / "annotations" / "panoptic_val.json").read_bytes()
    assert main(["data", "scenes", "-o", str(root), "--count", "1", "--split", "val"]) == 2
    assert "already has a split 'val'" in capsys.readouterr().err
    assert (root / "annotations" / "panoptic_val.json").read_bytes() == before
    assert main(["data", "scenes", "-o", str(root), "--count", "0", "--split", "none"]) == 2
    assert json.loads(before)["categories"]


def test_a_scene_can_be_told_in_memory() -> None:
    from ppmn.data.panoptic import PanopticImage

    rng = np.random.default_rng(1)
    scene = draw_scene(rng)
    image = PanopticImage(0, Path("a"), Path("b"), 240, 320, scene.segments)
    told = Narrator(categories())(image, scene.ids, scene.pixels, rng, absent=1)
    assert any(p.segment_ids for p in told.phrases) and sum(p.absent for p in told.phrases) == 1
