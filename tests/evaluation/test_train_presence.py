"""Training of the presence layers on drawn rectangles: what is asked for is true, and a model comes out."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import small_ppmn
from support.rectangles import CLOSE, DOGS, TRAINED, write_source
from torch import Tensor

from experiments import train_presence
from experiments.presence_masks import STEPS, covered_tokens, token_loss
from experiments.presence_phrases import PresencePhrases
from ppmn.config import PointingConfig
from ppmn.data.panoptic import read_panoptic
from ppmn.model.folder import load_model, save_model


def test_nouns_are_present_where_a_segment_has_their_category(tmp_path: Path, text: Path) -> None:
    write_source(tmp_path, [DOGS], TRAINED[:1])
    source = replace(read_panoptic(tmp_path, "train"), complete=True)  # whatever is described
    phrases = PresencePhrases(source, source.images, 0)
    phrases.encode(small_ppmn(text).text_encoder, nullcontext())
    image, rng = source.images[0], np.random.default_rng(0)
    categories = {s.category_id for s in image.segments}
    asked = [question.present for question in phrases.of_nouns(image, rng)]
    assert sum(asked) == len(categories) and len(asked) > sum(asked)
    listed = [question.present for question in phrases.of_lists(image, rng)]
    assert any(listed) and not all(listed)
    own = list(phrases.of_image(image))
    assert any(question.present for question in own) and own[0].vector.shape == (32,)
    assert not list(phrases.swapped(image, phrases, 20, rng))  # there is no other image


def test_masks_say_how_much_of_a_token_shows_a_category(tmp_path: Path) -> None:
    write_source(tmp_path, [DOGS], TRAINED[:1])
    (image,) = read_panoptic(tmp_path, "train").images
    categories, steps = covered_tokens(image, (10, 20), [0])  # tokens of 4x4 pixels
    ids = image.ids()
    for category, row in zip([*categories, 0], steps, strict=True):
        segments = [s.id for s in image.segments if s.category_id == category] or [0]
        shares = np.isin(ids, segments).reshape(10, 4, 20, 4).mean((1, 3))
        np.testing.assert_allclose(row.reshape(10, 20) / STEPS**2, shares)


def test_token_logits_are_learned_where_it_is_known_what_a_token_shows() -> None:
    covered = {1: torch.tensor([1.0, 0.0, 0.0, 0.5]), 2: torch.tensor([0.0, 1.0, 0.0, 0.5])}
    meant = [frozenset({1}), frozenset({1, 2}), frozenset({3})]
    counted = torch.tensor([1.0, 1.0, 0.0, 1.0])
    right = torch.tensor([[9.0, -9, 9, 0], [9, 9, 9, 9], [-9, -9, 9, -9]], requires_grad=True)
    loss = token_loss(right, meant, covered, counted)
    (gradient,) = torch.autograd.grad(loss, right)
    assert not gradient[:, 2].any() and gradient.abs().max() < 1e-5
    assert token_loss(-right, meant, covered, counted) > 10 * loss


Train = Callable[[str], None]


@pytest.fixture
def train(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Two steps on two images, into a folder of this name."""
    pointing = PointingConfig(channels=16, image_layers=1, phrase_layers=1, features=8)
    save_model(small_ppmn(text, pointing=pointing, query="phrase"), tmp_path / "model")
    write_source(tmp_path / "photos" / "ade", [DOGS, CLOSE], TRAINED)

    def run(out: str) -> None:
        command = ["", "--model", str(tmp_path / "model"), "--data-root", str(tmp_path / "photos")]
        command += ["--out", str(tmp_path / out), "--cache", str(tmp_path / "cache"), "--samples", "8"]
        monkeypatch.setattr(sys, "argv", command)
        train_presence.main()

    return run


def test_a_stopped_run_continues_with_the_same_bits(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_presence, "CHECKPOINT_EVERY", 1)
    loss, steps = train_presence.Training.loss, []

    def stopped(*args: Any) -> Tensor:
        steps.append(args)
        if len(steps) == 2:
            raise KeyboardInterrupt
        return loss(*args)

    monkeypatch.setattr(train_presence.Training, "loss", stopped)
    with pytest.raises(KeyboardInterrupt):
        train("stopped")
    train("stopped")
    assert len(steps) == 3  # the first was not repeated
    train("whole")
    stopped_model, whole = (load_model(tmp_path / name).state_dict() for name in ("stopped", "whole"))
    assert all(torch.equal(tensor, stopped_model[name]) for name, tensor in whole.items())
    assert not list(tmp_path.glob("*checkpoint*"))


def test_training_changes_the_presence_layers_only(tmp_path: Path, train: Train) -> None:
    train("out")
    before, after = (load_model(tmp_path / name).state_dict() for name in ("model", "out"))
    added = set(after) - set(before)
    assert added and all(name.startswith("head.pointing.presence.") for name in added)
    for name, tensor in before.items():
        torch.testing.assert_close(after[name].float(), tensor.float(), rtol=2e-3, atol=2e-3)
