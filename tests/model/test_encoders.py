"""Image backbones and text encoders of transformers, tiny and random, in networks that train and ground."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.encoders import BACKBONES, TEXTS, backbone_folder, text_folder
from support.models import random_images, small_config
from support.training import items, small_run, tiny

from ppmn.config import BackboneConfig, TrainConfig
from ppmn.errors import InputError
from ppmn.grounding.grounder import Grounder
from ppmn.model.backbone import BackboneFPN
from ppmn.model.folder import build_model, load_model, save_model
from ppmn.model.text import TextEncoder
from ppmn.training.initial import initial_model


def config_of(text: Path, source: Path, **changes: object) -> object:
    image = BackboneConfig(source=str(source), channels=32, **changes)  # type: ignore[arg-type]
    return replace(small_config(text), image=image)


@pytest.mark.parametrize("family", BACKBONES)
def test_backbone_grounds_saves_and_batches(family: str, text: Path, tmp_path: Path) -> None:
    model = build_model(config_of(text, backbone_folder(tmp_path / "backbone", family))).eval()
    save_model(model, tmp_path / "model")
    (tmp_path / "backbone").rename(tmp_path / "gone")  # the model folder needs nothing else
    again = load_model(tmp_path / "model")
    image = Image.linear_gradient("L").resize((90, 60)).convert("RGB")
    ours, theirs = (Grounder(m, device="cpu").ground(image, "a red ball on grass") for m in (model, again))
    assert all((a.response == b.response).all() for a, b in zip(ours, theirs, strict=True))
    side = model.image_encoder.multiple
    images = random_images((side, 2 * side), (2 * side, side))
    with torch.no_grad():
        batch = model.image_encoder(images)
        single = model.image_encoder(images[:1])
    for level, own in zip(batch.levels, single.levels, strict=True):
        assert torch.allclose(level[0, :, : own.shape[2], : own.shape[3]], own[0], atol=1e-4)
    sizes = [level.shape[-1] for level in single.levels]
    assert sizes == [sizes[3] * 8, sizes[3] * 4, sizes[3] * 2, sizes[3]]
    assert model.image_encoder.stride * sizes[1] == 2 * side
    count = sum(v.numel() for v in model.image_encoder.features(images[:1])[0].values())
    assert count == model.image_encoder.feature_count(side, 2 * side)


def test_caches_of_backbones_tell_their_deviations_apart(text: Path, tmp_path: Path) -> None:
    source = backbone_folder(tmp_path / "backbone", "dinov2")
    configs = [config_of(text, source), config_of(text, source, deviation=(1.0, 1.0, 1.0))]
    assert len({build_model(config).image_encoder.frozen_part()[1] for config in configs}) == 2


@pytest.mark.parametrize(("layers", "trained"), [(0, "none"), (1, "some"), (9, "all")])
def test_backbone_is_frozen_partly_or_wholly_trained(
    layers: int, trained: str, text: Path, tmp_path: Path
) -> None:
    source = backbone_folder(tmp_path / "backbone", "dinov2")
    config = tiny(
        text, model=config_of(text, source, trainable_layers=layers), lr_image=1e-3 if layers else 0.0
    )
    encoder = initial_model(config).image_encoder
    assert isinstance(encoder, BackboneFPN)
    flags = [p.requires_grad for p in encoder.backbone.parameters()]
    assert {"none": not any(flags), "some": any(flags) and not all(flags), "all": all(flags)}[trained]
    assert all(p.requires_grad for p in encoder.adapter.parameters())


def test_a_run_with_a_frozen_backbone_trains_its_pyramid(scenes: Path, text: Path, tmp_path: Path) -> None:
    source = backbone_folder(tmp_path / "backbone", "convnext")
    run = small_run(tiny(text, model=config_of(text, source), lr_image=0.0), scenes, tmp_path / "run")
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    run.step(items(run), 10)
    after = dict(run.model.named_parameters())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("image_encoder.adapter") for name in changed)
    assert not any(name.startswith("image_encoder.backbone") for name in changed)


def cached_step(config: TrainConfig, scenes: Path, folder: Path) -> tuple[set[str], int]:
    """A step that fills the caches and one that reads them, each as without caches.

    Returns:
        The tensors that changed, and the number of files in the caches.
    """
    run = small_run(config, scenes, folder / "run", folder / "cache")
    plain = small_run(config, scenes, folder / "plain")
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    for _ in range(2):
        loss, expected = (own.step(items(own), 10)["loss"] for own in (run, plain))
        assert loss == pytest.approx(expected, rel=0.02)  # a cache holds half precision
    after = dict(run.model.named_parameters())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    return changed, len(list((folder / "cache").rglob("*.safetensors")))


@pytest.mark.parametrize("family", BACKBONES)
def test_backbone_trains_on_cached_features(family: str, scenes: Path, text: Path, tmp_path: Path) -> None:
    source = backbone_folder(tmp_path / "backbone", family)
    config = tiny(text, model=config_of(text, source), lr_image=0.0, batch_size=2)
    changed, files = cached_step(config, scenes, tmp_path)
    assert files == 4  # of two images and two captions
    assert any(name.startswith("image_encoder.adapter") for name in changed)
    assert not any(name.startswith(("image_encoder.backbone", "text_encoder.")) for name in changed)


@pytest.mark.parametrize("family", TEXTS)
def test_text_encoder_trains_on_cached_words(family: str, scenes: Path, tmp_path: Path) -> None:
    source = text_folder(tmp_path / "text", family)
    config = tiny(source, model=small_config(source), batch_size=2)
    changed, files = cached_step(config, scenes, tmp_path)
    assert files == 2  # of two captions; the image encoder is trained
    assert any(name.startswith("head.") for name in changed)
    assert not any(name.startswith("text_encoder.") for name in changed)
    image = Image.linear_gradient("L").resize((90, 60)).convert("RGB")
    model = initial_model(config).eval()
    assert len(Grounder(model, device="cpu").ground(image, "a red ball on grass")) == 2


def test_bad_backbones_are_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"image\.source is empty"):
        build_model(replace(small_config(text), image=BackboneConfig(channels=32)))
    with pytest.raises(InputError, match="is a bert, which is no backbone"):
        build_model(config_of(text, text))
    source = backbone_folder(tmp_path / "backbone", "dinov2")
    with pytest.raises(InputError, match=r"image\.layers is \(7,\)"):
        build_model(config_of(text, source, layers=(7,)))
    config = tiny(text, model=config_of(text, source), lr_image=1e-3)
    with pytest.raises(InputError, match="trainable_layers is 0"):
        initial_model(config)


@pytest.mark.parametrize("family", TEXTS)
def test_text_encoder_reads_long_captions_and_is_saved(family: str, tmp_path: Path) -> None:
    source = text_folder(tmp_path / "text", family)
    encoder = TextEncoder.from_source(str(source), "phrase").eval()
    caption = "a red dog on the green grass and a cat " * 6  # longer than one window
    tokens = encoder.tokenize(caption, [(2, 9), (200, 208)])
    assert len(tokens.ids) > encoder.window
    with torch.no_grad():
        (words,) = encoder.encode([tokens.ids])
        both = encoder.encode([tokens.ids, tokens.ids[:5]])
    assert words.shape == (len(tokens.ids), 32)
    assert words.isfinite().all()
    assert torch.allclose(both[0], words, atol=1e-5)  # padding of the other caption changes nothing
    model = build_model(small_config(source)).eval()
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model").text_encoder
    with torch.no_grad():
        assert torch.equal(again.encode([tokens.ids])[0], words)
