"""Drawn scenes: exact masks, true captions, the same scene from the same seed."""

import json
import runpy
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.narration import false_claims

from ppmn.cli import main
from ppmn.data.narratives import read_narratives
from ppmn.data.panoptic import PanopticImage, read_ids, read_panoptic
from ppmn.images import read_image
from ppmn.synthetic.captions import GeneratedCaption
from ppmn.synthetic.narrator import Narrator
from ppmn.synthetic.scenes import draw_scene, scene_categories

COUNT = 60


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    assert (
        main(["data", "scenes", "-o", str(root), "--count", str(COUNT), "--split", "val", "--seed", "3"]) == 0
    )
    return root


def test_number_of_categories() -> None:
    categories = scene_categories().values()
    things = [c for c in categories if c.isthing]
    assert len(things) >= 30 and len(categories) - len(things) >= 8


def test_masks_equal_the_annotations(root: Path) -> None:
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


def test_captions_are_true_and_distinguish_things_of_one_category(root: Path) -> None:
    panoptic, distinguished, grounded = read_panoptic(root, "val"), 0, 0
    problems: list[object] = []
    for narrative in read_narratives(panoptic, problems.append):
        image = narrative.image
        generated = GeneratedCaption(narrative.caption, narrative.phrases)
        pixels = np.asarray(read_image(image.file))
        assert not false_claims(generated, image, image.ids(), pixels), generated.caption
        category = {s.id: s.category_id for s in image.segments}
        repeated = {c for c, n in Counter(category.values()).items() if n > 1}
        single = [p.segment_ids[0] for p in narrative.phrases if len(p.segment_ids) == 1]
        distinguished += any(category[id] in repeated for id in single)
        grounded += len(narrative.grounded)
    assert not problems
    assert distinguished >= COUNT / 2 and grounded >= 5 * COUNT


def test_same_seed_gives_the_same_files(root: Path, tmp_path: Path) -> None:
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


def test_colors_alone_do_not_solve_it(root: Path) -> None:
    bench = runpy.run_path(str(Path(__file__).resolve().parents[2] / "bench" / "scenes.py"))
    named, _ = bench["baselines"](root, "val")
    assert named.average_recall["overall"] < 40
    truths = bench["color_match"]("red car", np.array([[4, 1]], np.uint8))
    assert truths.tolist() == [[True, False]]


def test_existing_split_is_not_overwritten(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (root / "annotations" / "panoptic_val.json").read_bytes()
    assert main(["data", "scenes", "-o", str(root), "--count", "1", "--split", "val"]) == 2
    assert "already has a split 'val'" in capsys.readouterr().err
    assert (root / "annotations" / "panoptic_val.json").read_bytes() == before
    assert main(["data", "scenes", "-o", str(root), "--count", "0", "--split", "none"]) == 2
    assert json.loads(before)["categories"]


def test_scene_is_described_in_memory() -> None:
    rng = np.random.default_rng(1)
    scene = draw_scene(rng)
    image = PanopticImage(0, Path("a"), Path("b"), 240, 320, scene.segments)
    generated = Narrator(scene_categories())(image, scene.ids, scene.pixels, rng, negative_phrases=1)
    assert any(p.segment_ids for p in generated.phrases)
    assert sum(p.absent for p in generated.phrases) == 1
