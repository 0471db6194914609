"""Reading the benchmark as it is downloaded: alignment, index, ground truth."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.benchmark import IDS, NARRATIVES, write_data
from torch.nn.functional import interpolate, pad

from ppmn.data.align import Match, align
from ppmn.data.index import open_narratives
from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import IGNORE_ID, DataSpec, read_panoptic
from ppmn.data.targets import full_masks, targets_area, targets_ppmn2022
from ppmn.errors import InputError
from ppmn.files import cache_folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


# Alignment


def test_utterances_are_found_in_the_caption() -> None:
    caption = "A café  isn't on an old couch and two chairs."
    utterances = ["A", "Cafe", "is n't", "on", "an old", "couch and", "two chairs", "."]
    spans = [caption[p.start : p.end] for p in align(caption, utterances) if p]
    assert spans == ["A", "café", "isn't", "on", "an old", "couch and", "two chairs", "."]


def test_changed_words_are_placed_by_their_neighbors() -> None:
    caption = "There is an old couch near the window."
    matches = align(caption, ["There is a", "old sofa", "standing near the", "window", "."])
    assert matches[1] == Match(12, 21, exact=False)
    assert matches[3] == Match(31, 37)
    assert align("A dog.", ["A", "dog", "and a", "cat", "."])[3] is None


WORDS = st.lists(
    st.sampled_from(["A", "man", "isn't", "café", "Zoë", "man", "man's", ",", "tree"]), min_size=1
)


@given(WORDS, st.data())
def test_any_split_of_a_caption_is_found(words: list[str], data: st.DataObject) -> None:
    caption = "".join(w + " " * data.draw(st.integers(1, 2)) for w in words)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(words)), max_size=5)) | {len(words)})
    utterances, at = [], 0
    for cut in cuts:
        utterances.append(" ".join(words[at:cut]).lower().replace("n't", " n't").replace("é", "e\u0301"))
        at = cut
    matches = align(caption, utterances)
    found = [caption[p.start : p.end].split() for p in matches if p and p.exact]
    assert found == [words[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]


# Reader


def test_grounded_narratives_are_kept_and_others_counted(data: Path) -> None:
    with pytest.warns(UserWarning, match="val2017: 1 narratives without a grounded phrase are left out"):
        narratives = open_narratives(data, "val2017")
    assert (len(narratives), narratives.skipped, narratives.problems) == (2, 1, 0)
    first = narratives[0]
    assert [first.caption[p.start : p.end] for p in first.phrases] == ["Two dogs", "Grass", "café"]
    assert [(p.segment_ids, p.plural, p.isthing) for p in first.grounded] == [
        ((1, 2), True, True),
        ((300,), False, False),
    ]
    assert narratives[-1].index == 2
    assert (first.image.ids() == IDS).all() and first.image.file.is_file()
    assert narratives.categories[193].name == "grass"


def test_index_is_pickled_by_name_and_built_once(data: Path, cache: Path) -> None:
    narratives = open_narratives(data, "val2017")
    made = {f: f.stat().st_mtime_ns for f in cache.iterdir()}
    assert len(pickle.dumps(narratives)) < 2_000
    assert pickle.loads(pickle.dumps(narratives))[:] == narratives[:]
    moved = data.rename(data.with_name("moved"))
    again = open_narratives(moved, "val2017")
    assert {f: f.stat().st_mtime_ns for f in cache.iterdir()} == made
    assert again[0].image.file.is_relative_to(moved) and again.fingerprint == narratives.fingerprint


def test_index_is_rebuilt_when_annotations_change_or_it_is_damaged(data: Path, cache: Path) -> None:
    before = open_narratives(data, "val2017")
    (index,) = cache.iterdir()
    index.write_bytes(b"damaged")
    assert len(open_narratives(data, "val2017")) == 2
    (data / "annotations/png_coco_val2017.json").write_text(json.dumps(NARRATIVES[:1]))
    after = open_narratives(data, "val2017")
    assert len(after) == 1 and after.fingerprint != before.fingerprint


def test_data_folder_may_be_read_only(data: Path) -> None:
    for folder in (data, data / "annotations"):
        folder.chmod(0o555)
    assert len(open_narratives(data, "val2017")) == 2


@pytest.mark.parametrize("place", ["7.jpg", "7.jpg/below"])
def test_unwritable_cache_is_an_input_error(data: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("PPMN_CACHE", str(data / "images/val2017" / place))
    with pytest.raises(InputError, match="PPMN_CACHE"):
        open_narratives(data, "val2017")


def test_segment_id_beyond_24_bits_is_an_input_error(data: Path) -> None:
    file = data / "annotations/panoptic_val2017.json"
    file.write_text(file.read_text().replace("70000", "16777216"))
    with pytest.raises(InputError, match="16777216"):
        open_narratives(data, "val2017")


def test_a_spec_without_a_split_means_all_splits(data: Path) -> None:
    shutil.copy(data / "annotations/panoptic_val2017.json", data / "annotations/panoptic_test.json")
    assert DataSpec(data).splits == ["test", "val2017"]
    assert DataSpec(data, "val2017").splits == ["val2017"]


@pytest.mark.parametrize("complete", [None, True, False])
def test_completeness_is_read_from_the_annotations(data: Path, complete: bool | None) -> None:
    file = data / "annotations/panoptic_val2017.json"
    content = json.loads(file.read_text())
    if complete is not None:
        content["complete"] = complete
    file.write_text(json.dumps(content))
    expected = complete is not False
    assert read_panoptic(data, "val2017").complete is expected
    assert open_narratives(data, "val2017").complete is expected


def test_cache_folder_is_the_users_or_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPMN_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("PPMN_CACHE")
    assert "ppmn" in cache_folder().parts


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("png_coco_val2017.json", "[{}]"),
        ("png_coco_val2017.json", "{}"),
        ("png_coco_val2017.json", "[1]"),
        ("png_coco_val2017.json", "[{"),
        ("panoptic_val2017.json", '{"images": []}'),
        ("panoptic_val2017.json", "[]"),
        ("panoptic_val2017.json", '{"categories": [], "annotations": [], "images": [3]}'),
    ],
)
def test_malformed_annotations_are_input_errors(data: Path, file: str, text: str) -> None:
    (data / "annotations" / file).write_text(text)
    with pytest.raises(InputError, match=file):
        open_narratives(data, "val2017")


# Ground truth

SIZES = st.tuples(st.integers(1, 90), st.integers(1, 90))


def padded(size: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // 32) * 32, -(-size[1] // 32) * 32


def dense(masks: np.ndarray, resized: tuple[int, int]) -> np.ndarray:
    """The authors' way: float masks through two bilinear resizes, kept where above zero."""
    large = interpolate(torch.from_numpy(masks).float()[None], resized, mode="bilinear", align_corners=False)
    height, width = padded(resized)
    large = pad(large, (0, width - resized[1], 0, height - resized[0]))
    small = interpolate(large, scale_factor=0.25, mode="bilinear", align_corners=False)
    return (small[0] > 0).numpy()


def scene(size: tuple[int, int], count: int, seed: int) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 9, (size[0] // 3 + 1, size[1] // 3 + 1)).repeat(3, 0).repeat(3, 1)
    rows = [tuple(rng.integers(0, 12, rng.integers(0, 4)).tolist()) for _ in range(count)]
    return ids[: size[0], : size[1]].astype(np.int32), rows


@settings(deadline=None)
@given(SIZES, SIZES, st.integers(1, 70), st.integers(0, 99))
def test_ppmn2022_targets_equal_the_dense_computation(
    size: tuple[int, int], resized: tuple[int, int], count: int, seed: int
) -> None:
    ids, rows = scene(size, count, seed)
    masks = full_masks(ids, rows)
    assert all((mask == np.isin(ids, row)).all() for mask, row in zip(masks, rows, strict=True))
    assert (targets_ppmn2022(ids, rows, resized, padded(resized)) == dense(masks, resized)).all()


@settings(deadline=None)
@given(st.tuples(st.integers(1, 12), st.integers(1, 12)), SIZES, st.integers(0, 99))
def test_area_targets_equal_the_exact_box_average(
    size: tuple[int, int], cells: tuple[int, int], seed: int
) -> None:
    ids, rows = scene(size, 5, seed)
    masks, valid = targets_area(ids, rows, cells)
    fine = full_masks(ids, rows).repeat(cells[0], 1).repeat(cells[1], 2)  # cells are whole blocks of this
    means = fine.reshape(5, cells[0], size[0], cells[1], size[1]).mean((2, 4))
    assert (masks == (means >= 0.5)).all() and valid.all()


def test_ignored_pixels_are_neither_in_nor_out() -> None:
    ids = np.array([[5, 5, IGNORE_ID, IGNORE_ID], [IGNORE_ID, 6, IGNORE_ID, 6]], np.int32)
    masks, valid = targets_area(ids, [(5,), (6,)], (1, 2), ignore_ids={IGNORE_ID})
    assert masks[:, 0].tolist() == [[True, False], [False, True]]
    assert valid.tolist() == [[True, False]]


# The authors' reader


def word_pieces(narrative: Narrative, tokenizer: Any) -> list[int]:
    """For every word piece (with its [CLS] and [SEP]) the number of its grounded phrase, or 0."""
    offsets = tokenizer(narrative.caption, return_offsets_mapping=True)["offset_mapping"]
    return [
        next((n for n, p in enumerate(narrative.grounded, 1) if start < p.end and end > p.start), 0)
        for start, end in offsets
    ]


@pytest.mark.filterwarnings("ignore:.*problems")
@pytest.mark.parametrize("part", ["train", "val"])
def test_rows_equal_the_authors_reader(shared: Path, part: str) -> None:
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast(vocab=str(shared / "reference/bert_tiny/vocab.txt"))
    root = shared / "reference/data_mini"
    expected = load_file(root / "expected/items.safetensors")
    kept = json.loads((root / "expected/meta.json").read_text())[part]
    narratives = open_narratives(root, f"{part}2017")
    ours = {(n.image.id, n.caption): n for n in narratives}
    assert len(kept) == 6 and len(narratives) == len(ours) == 9  # three were dropped for a token count
    for i, item in enumerate(kept):
        narrative = ours[item["image_id"], item["caption"]]
        theirs = {k.partition(".")[2]: v for k, v in expected.items() if k.startswith(f"{part}{i}.")}
        pieces = word_pieces(narrative, tokenizer)
        assert pieces == theirs["noun_vector_padding"][: len(pieces)].tolist()
        assert not theirs["noun_vector_padding"][len(pieces) :].any()
        phrases = narrative.grounded
        rows = [phrases[p - 1] for p in pieces if p] if part == "train" else list(phrases)
        assert theirs["ann_types"][: len(rows)].tolist() == [1 + p.plural for p in rows]
        assert theirs["ann_categories"][: len(rows)].tolist() == [1 if p.isthing else 2 for p in rows]
        assert not theirs["ann_types"][len(rows) :].any()
        masks = full_masks(narrative.image.ids(), [p.segment_ids for p in rows])
        assert (masks == theirs["gt"]).all()
        resized = tuple(item["image_shape"][1:])
        targets = targets_ppmn2022(
            narrative.image.ids(), [p.segment_ids for p in rows], resized, padded(resized)
        )
        assert (targets == dense(theirs["gt"], resized)).all()
