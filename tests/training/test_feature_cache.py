"""Training samples, and the cache of the outputs of frozen encoders."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.training import arguments, items, small_run, tiny

from ppmn.cli import main
from ppmn.config import Augment, TrainConfig
from ppmn.data.panoptic import DataSpec
from ppmn.data.partition import held_out
from ppmn.errors import InputError
from ppmn.images import read_image
from ppmn.model import folder as weights
from ppmn.synthetic.narrator import rng_for
from ppmn.training.augment import paste_things
from ppmn.training.dataset import Item, TrainingSet, epoch_batches
from ppmn.training.encoder_inputs import image_inputs, open_caches
from ppmn.training.feature_cache import FeatureCache, FeatureCaches
from ppmn.training.initial import initial_model
from ppmn.training.run_folder import RunFolder
from ppmn.training.sources import Source, open_training_sources
from ppmn.training.trainer import Trainer


def frozen(text: Path, init: Path, **changes: object) -> TrainConfig:
    return replace(tiny(text, lr_image=0.0, **changes), model=weights.read_config(init))


@pytest.fixture(scope="module")
def trained(scenes: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    assert main(arguments(scenes, text, out, "--epochs", "1", "--set", "validation_fraction=0")) == 0
    return out


def cached_run(config: TrainConfig, init: Path, scenes: Path, folder: Path, cache: Path | None) -> Trainer:
    model = initial_model(config, init)
    sources = open_training_sources([DataSpec(scenes)])
    data = TrainingSet(sources, config, model, open_caches(config, cache, model, sources))
    return Trainer(config, model, data, RunFolder(folder))


def test_cache_runs_frozen_encoders_once_and_keeps_the_losses(
    scenes: Path, text: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = cached_run(frozen(text, trained), trained, scenes, tmp_path / "plain", None)
    cached = cached_run(frozen(text, trained), trained, scenes, tmp_path / "cached", tmp_path / "cache")
    assert "will take up to" in capsys.readouterr().out
    losses = [[run.step(items(run, epoch), 10)["loss"] for epoch in (0, 0)] for run in (plain, cached)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
    calls: list[int] = []
    for encoder in (cached.model.image_encoder, cached.model.text_encoder.bert):
        encoder.register_forward_hook(lambda *_: calls.append(1))
    cached.step(items(cached), 10)
    assert not calls
    again = cached_run(frozen(text, trained), trained, scenes, tmp_path / "again", tmp_path / "cache")
    assert [again.step(items(again, 0), 10)["loss"] for _ in range(2)] == losses[
        1
    ]  # also in the epoch that wrote the cache


def test_cache_is_refused_where_features_would_differ(
    scenes: Path, text: Path, trained: Path, tmp_path: Path
) -> None:
    config, sources = frozen(text, trained), [Source(scenes, "train", 1.0)]
    counted = replace(config, model=replace(config.model, count_padding=True))
    for changed, word in (
        (replace(config, augment=Augment(flip=True)), "images change every epoch"),
        (replace(config, text_dropout=True), "dropout"),
        (replace(config, small_epochs=1), "images grow"),
        (replace(config, lr_image=1e-4, lr_text=1e-4), "both encoders"),
        (counted, "padding"),
    ):
        with pytest.raises(InputError, match=word):
            open_caches(changed, tmp_path / "cache", initial_model(changed, trained), sources)
    model = initial_model(config, trained)
    open_caches(config, tmp_path / "cache", model, sources)
    with torch.no_grad():
        next(model.image_encoder.parameters()).add_(1)
    with pytest.raises(InputError, match="another encoder"):
        open_caches(config, tmp_path / "cache", model, sources)


def test_images_are_small_in_the_first_epochs_only(scenes: Path, text: Path, tmp_path: Path) -> None:
    run = small_run(tiny(text, epochs=2, small_epochs=1, validation_fraction=0.2), scenes, tmp_path)
    sides: list[tuple[int, ...]] = []

    def step(found: list[Item], steps: int) -> dict[str, float]:
        sides.extend(item.image.shape[1:] for item in found if item.image is not None)
        run.progress.total += 1
        return {"loss": 0.0, "total": run.progress.total}

    run.step = step  # type: ignore[method-assign, assignment]
    run.fit({})
    half = len(sides) // 2
    assert set(sides[:half]) == {(53, 71)} and set(sides[half:]) == {(64, 85)}
    saved = weights.load_model(tmp_path).config
    assert (saved.short_side, saved.long_side) == (64, 128)


def test_half_written_marker_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, text: str) -> int:
        with self.open("w") as part:
            part.write(text[:2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", fail)
        with pytest.raises(InputError, match="No space left"):
            FeatureCache(tmp_path, "encoder")
    FeatureCache(tmp_path, "encoder")  # as another process would find it


def test_full_disk_leaves_no_half_written_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FeatureCache(tmp_path, "me")

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as part:
            part.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left"):
        cache.write("ab", {"p2": torch.ones(4)})
    assert cache.read("ab") is None
    assert [f.name for f in tmp_path.rglob("*") if f.is_file()] == ["encoder"]
    monkeypatch.undo()
    with pytest.raises(InputError, match="GB free"):
        cache.require(1e18)


def test_weights_decide_how_often_samples_are_seen(scenes: Path, text: Path, tmp_path: Path) -> None:
    config = tiny(text)
    model = initial_model(config, None)
    halves, twice = (
        TrainingSet([Source(scenes, "train", weight)], config, model, FeatureCaches())
        for weight in (0.5, 2.0)
    )
    assert sorted(n for b in epoch_batches(twice, 0, 4) for n in b) == [*range(48)]
    seen = [{n for b in epoch_batches(halves, epoch, 4) for n in b} for epoch in range(2)]
    assert [len(s) for s in seen] == [12, 12] and seen[0] != seen[1]
    nothing = TrainingSet([Source(scenes, "train", 0.001)], config, model, FeatureCaches())
    with pytest.raises(InputError, match=r"leave no image for an epoch: .*:train 0\.001"):
        epoch_batches(nothing, 0, 4)


@pytest.fixture
def bare(scenes: Path, tmp_path: Path) -> Path:
    """The scenes without their narratives."""
    shutil.copytree(scenes, tmp_path / "bare")
    (tmp_path / "bare" / "annotations" / "png_coco_train.json").unlink()
    return tmp_path / "bare"


def test_narratives_are_regenerated_and_images_held_out_by_name(bare: Path, text: Path) -> None:
    augment = Augment(flip=True, min_crop=0.6, color_jitter=0.2, max_pasted=2)
    config = tiny(text, augment=augment, negative_phrases=1, validation_fraction=0.3)
    model = initial_model(config, None)
    data = TrainingSet(open_training_sources([DataSpec(bare)]), config, model, FeatureCaches())
    first, again, later = data[(0, 0)], data[(0, 0)], data[(1, 0)]
    assert isinstance(first, Item) and isinstance(again, Item) and isinstance(later, Item)
    assert first.captions == again.captions and torch.equal(first.targets, again.targets)
    assert first.captions != later.captions
    source = data.sources[0]
    held = {i for i in range(len(source)) if held_out(source.annotation(i), 0.3)}
    assert held and held.isdisjoint(index for _, index in data.references)


def test_copies_have_other_narratives_and_fixed_augmentation(
    bare: Path, text: Path, trained: Path, tmp_path: Path
) -> None:
    augment = Augment(flip=True, min_crop=0.5, color_jitter=0.2, max_pasted=2, fixed=True)
    config = frozen(text, trained, augment=augment, negative_phrases=1)
    run = cached_run(config, trained, bare, tmp_path / "run", tmp_path / "cache")
    plain = cached_run(frozen(text, trained, negative_phrases=1), trained, bare, tmp_path / "plain", None)
    places = [(epoch, number) for number in (0, len(run.data)) for epoch in (0, 1)]
    found = [run.data[place] for place in places]
    items = [item for item in found if isinstance(item, Item)]
    unchanged, images = plain.data[(0, 0)], [item.image for item in items if item.image is not None]
    assert isinstance(unchanged, Item) and unchanged.image is not None and len(images) == 4
    assert torch.equal(images[0], unchanged.image) and torch.equal(images[0], images[1])
    assert torch.equal(images[2], images[3]) and not torch.equal(images[0], images[2])
    assert len({item.captions[0].ids for item in items}) == 4
    image_inputs(items, run.model, run.data.caches.image, torch.device("cpu"))
    again = [run.data[place] for place in places]
    assert all(isinstance(item, Item) and item.image is None for item in again)


def test_mirrored_samples_use_mirrored_features(
    scenes: Path, text: Path, trained: Path, tmp_path: Path
) -> None:
    config = frozen(text, trained, augment=Augment(mirror=True))
    with pytest.raises(InputError, match="padded"):
        cached_run(config, trained, scenes, tmp_path / "padded", tmp_path / "padded-cache")
    config = replace(config, model=replace(config.model, short_side=96, long_side=128))
    run = cached_run(config, trained, scenes, tmp_path / "run", tmp_path / "cache")
    unchanged = replace(config, augment=Augment())
    plain = cached_run(unchanged, trained, scenes, tmp_path / "plain", tmp_path / "cache")
    device = torch.device("cpu")
    seen = set()
    for number in range(8):
        item, other = run.data[(0, number)], plain.data[(0, number)]
        assert isinstance(item, Item) and isinstance(other, Item)
        ours, theirs = (image_inputs([i], run.model, run.data.caches.image, device)[0] for i in (item, other))
        for name, features in theirs.items():
            torch.testing.assert_close(ours[name], features.flip(-1) if item.mirrored else features)
        assert torch.equal(item.targets, other.targets.flip(-1) if item.mirrored else other.targets)
        seen.add(item.mirrored)
    assert seen == {True, False}


def test_several_narratives_per_image_are_captions_of_their_own(bare: Path) -> None:
    source = Source(bare, "train", 1.0)
    once, twice = (
        source.sample(0, rng_for(7, 0, 0), negative_phrases=1, narratives_per_image=n) for n in (1, 2)
    )
    for count, sample in ((1, once), (2, twice)):  # the others are short: requests and nouns alone
        assert sum(caption.caption.endswith(".") for caption in sample.captions) == count
    assert twice.captions[0] == once.captions[0] != twice.captions[1]
    assert twice.phrases[: len(once.captions[0].phrases)] == once.captions[0].phrases


def test_pasted_things_lie_within_their_segments(scenes: Path) -> None:
    source = Source(scenes, "train", 1.0)
    annotation, donor = source.annotation(0), source.annotation(1)
    image, ids = read_image(annotation.file), annotation.ids()
    things = {c.id for c in source.categories.values() if c.isthing}
    rng = np.random.default_rng(4)
    view = paste_things((annotation, image, ids), donor, things, rng, 3)
    pasted, changed, changed_ids = view
    new = pasted.segments[len(annotation.segments) :]
    assert 0 < len(new) <= 3 and {s.category_id for s in new} <= {s.category_id for s in donor.segments}
    here = np.isin(changed_ids, [s.id for s in new])
    assert here.any() and np.array_equal(changed_ids[~here], ids[~here])
    different = (np.asarray(changed) != np.asarray(image)).any(-1)
    assert not different[~here].any() and different[here].mean() > 0.9
    for segment in new:
        x, y, width, height = segment.bbox
        outside = changed_ids == segment.id
        outside[y : y + height, x : x + width] = False
        assert not outside.any()
