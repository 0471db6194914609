"""Average Recall: parity with the authors' numbers, and what holds for any list of IoUs."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from ppmn.errors import InputError
from ppmn.evaluation.metrics import (
    SPLITS,
    AverageRecall,
    PhraseKey,
    average_recall,
    bootstrap,
    iou,
    recall_curve,
)

ious_lists = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def threshold_loop(ious: list[float]) -> float:
    """The sum over 99,999 thresholds, one after another."""
    array = np.asarray(ious)
    return math.fsum(1e-5 * np.count_nonzero(array >= i * 1e-5) / len(array) for i in range(99_999))


@pytest.fixture(scope="session")
def eval_set(shared: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    folder = shared / "reference" / "eval_set"
    return json.loads((folder / "meta.json").read_text()), load_file(folder / "inputs.safetensors")


def quarter_scale(gt: torch.Tensor, resized: tuple[int, int], padded: tuple[int, int]) -> torch.Tensor:
    """Annotated masks to the authors' ground truth: resize, pad, quarter, any touched tap."""
    big = F.interpolate(gt[None].float(), size=resized, mode="bilinear", align_corners=False)
    big = F.pad(big, (0, padded[1] - resized[1], 0, padded[0] - resized[0]))
    return F.interpolate(big, scale_factor=0.25, mode="bilinear", align_corners=False)[0] > 0


def test_ppmn2022_gives_the_authors_numbers(eval_set):
    meta, tensors = eval_set
    metric, expected = AverageRecall("ppmn2022"), []
    for number, image in enumerate(meta["images"]):
        truth = quarter_scale(tensors[f"img{number:02}.gt"], image["resized"], image["padded"])
        maps = tensors[f"img{number:02}.logits4"].float().sigmoid()
        for phrase, (start, end) in enumerate(zip(image["inter"], image["inter"][1:], strict=False)):
            prediction = maps[start:end].mean(0) > 0.5
            got = metric.update(
                PhraseKey("eval_set", number, 0, phrase),
                prediction,
                truth[phrase],
                thing=image["cats"][phrase] == 1,
                plural=image["types"][phrase] == 2,
            )
            expected.append((got, image["inter_union_iou"][phrase][2]))
    assert len(expected) == 79
    np.testing.assert_allclose(*zip(*expected, strict=True), atol=1e-6)  # NaN stands where NaN stood
    scores, official = metric.compute(), meta["expected"]
    names = {
        "overall": "final",
        "things": "things",
        "stuff": "stuffs",
        "singulars": "singulars",
        "plurals": "plurals",
    }
    for split, name in names.items():
        assert scores.average_recall[split] / 100 == pytest.approx(official[f"aa/{name}"], abs=1e-6)
    assert scores.accuracy_50 / 100 == pytest.approx(official["aa/acc@0.5"], abs=1e-12)
    assert (scores.empty, scores.empty_found) == (2, 1)


def test_ppmn2022_gives_the_authors_values_of_lists(eval_set):
    for name, case in eval_set[0]["average_accuracy_lists"].items():
        assert average_recall(case["ious"], "ppmn2022") == pytest.approx(case["AA"], abs=1e-9), name


@pytest.mark.parametrize("value", [0.0, 1e-5, 0.1, 0.25, 0.3, 0.29999999, 0.5, 0.57, 0.99998, 0.99999, 1.0])
def test_closed_form_is_the_loop_at_thresholds(value):
    assert average_recall([value], "ppmn2022") == pytest.approx(threshold_loop([value]), abs=1e-10)


@settings(max_examples=8, deadline=None)
@given(ious_lists)
def test_mean_iou_is_the_threshold_loop(ious):
    loop = threshold_loop(ious)
    assert average_recall(ious) == pytest.approx(loop, abs=1.1e-5)
    assert average_recall(ious, "ppmn2022") == pytest.approx(loop, abs=1e-10)


@given(ious_lists)
def test_curve_falls_and_its_area_is_the_average_recall(ious):
    curve = recall_curve(ious)
    assert curve[0] == 1 and curve == sorted(curve, reverse=True)
    assert curve[50] == pytest.approx(np.mean(np.array(ious) >= 0.5))
    assert np.mean(curve[1:]) <= average_recall(ious) + 1e-9 <= np.mean(curve[:-1]) + 0.01


def test_nan_is_left_out_in_full_and_a_miss_in_ppmn2022():
    assert average_recall([0.2, math.nan, 0.8]) == pytest.approx(0.5)
    assert average_recall([0.2, math.nan, 0.8], "ppmn2022") == pytest.approx(1 / 3, abs=1e-5)
    assert recall_curve([0.2, math.nan])[0] == 0.5


masks = st.integers(0, 2**12 - 1).map(lambda n: np.array([n >> i & 1 for i in range(12)], bool).reshape(3, 4))
phrases = st.tuples(masks, masks, st.booleans(), st.booleans())


def measure(rows, protocol="full", keys=None) -> AverageRecall:
    metric = AverageRecall(protocol)
    for key, (prediction, truth, thing, plural) in zip(keys or range(len(rows)), rows, strict=True):
        metric.update(PhraseKey("s", key // 3, 0, key), prediction, truth, thing=thing, plural=plural)
    return metric


@settings(deadline=None, max_examples=30)
@given(st.lists(phrases, max_size=12), st.integers(1, 4), st.randoms(), st.sampled_from(["full", "ppmn2022"]))
def test_merging_is_exact(rows, parts, rand: random.Random, protocol):
    whole = measure(rows, protocol).compute()
    keys = list(range(len(rows)))
    rand.shuffle(keys)
    merged = AverageRecall(protocol)
    for part in range(parts):
        chosen = keys[part::parts] + keys[:1]  # the first phrase is measured by every process
        merged.merge(
            measure([rows[k] for k in dict.fromkeys(chosen)], protocol, dict.fromkeys(chosen)).phrase_scores
        )
    assert merged.compute() == whole


def test_empty_truth_is_counted_apart_and_a_missing_prediction_is_zero():
    full, none = np.ones((2, 2), bool), np.zeros((2, 2), bool)
    metric = AverageRecall()
    metric.update(0, full, full, thing=True, plural=False)
    metric.update(1, None, full, thing=False, plural=False)
    metric.update(2, full, none, thing=True, plural=True)
    metric.update(3, none, none, thing=True, plural=True)
    scores = metric.compute()
    assert scores.average_recall == {
        "overall": 50,
        "things": 100,
        "stuff": 0,
        "singulars": 50,
        "plurals": None,
        "things_alone": None,
        "things_among": None,
        "plurals_some": None,
    }
    paper = {"overall": 2, "things": 1, "stuff": 1, "singulars": 2, "plurals": 0}
    assert {split: scores.phrases[split] for split in SPLITS} == paper
    assert (scores.missing, scores.empty, scores.empty_found) == (1, 2, 1)
    metric.reset()
    assert metric.compute().average_recall["overall"] is None


def test_bad_masks_and_conflicting_scores_are_refused():
    metric, mask = AverageRecall(), np.ones((2, 2), bool)
    with pytest.raises(InputError, match=r"\(3, 2\).*\(2, 2\)"):
        iou(np.ones((3, 2), bool), mask)
    with pytest.raises(InputError, match="threshold"):
        iou(np.full((2, 2), 0.7), mask)
    with pytest.raises(InputError, match="average"):
        AverageRecall("average")
    metric.update("a", mask, mask, thing=True, plural=False)
    metric.update("a", mask, mask, thing=True, plural=False)
    with pytest.raises(InputError, match="twice"):
        metric.update("a", ~mask, mask, thing=True, plural=False)


def test_bootstrap_covers_the_mean_it_estimates():
    rng = np.random.default_rng(1)
    inside = 0
    for trial in range(100):
        interval = bootstrap(rng.normal(0.3, 1, 60), resamples=400, seed=trial)
        inside += interval.low <= 0.3 <= interval.high
    assert 85 <= inside <= 100


def test_phrases_of_one_image_do_not_make_the_interval_narrower():
    rng = np.random.default_rng(2)
    images = rng.normal(size=30)
    values, groups = np.repeat(images, 20), np.repeat(np.arange(30), 20).tolist()
    apart, together = bootstrap(values), bootstrap(values, groups)
    alone = bootstrap(images)
    assert together.high - together.low == pytest.approx(alone.high - alone.low, rel=0.1)
    assert apart.high - apart.low < 0.5 * (together.high - together.low)
