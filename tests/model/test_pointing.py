"""Point and draw: batches equal singles, padding changes nothing, and filters do what their equation says."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from support.models import random_images, small_config, small_ppmn
from torch import Tensor

from ppmn.config import ModelConfig, PointingConfig
from ppmn.errors import InputError
from ppmn.model.draws import tokens_inside
from ppmn.model.folder import load_model, save_model
from ppmn.model.losses import point_loss, presence_loss
from ppmn.model.network import PPMN
from ppmn.model.pointing import Pointed, Pointing
from ppmn.model.text import Tokens

POINTING = PointingConfig(channels=16, image_layers=1, phrase_layers=2, presence_layers=1, features=8)
TWO = ("a dog and a cat", [(2, 5), (12, 15)])
ONE = ("the red dog on the left", [(0, 11)])


@pytest.fixture
def model(text: Path) -> PPMN:
    """A network that points, in double precision, whose phrase layers have learned something."""
    model = small_ppmn(text, pointing=POINTING, query="phrase").double()
    generator = torch.Generator().manual_seed(3)
    assert model.head.pointing
    for parameter in model.head.pointing.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.data += 0.1 * noise
    return model


def tokens(model: PPMN, *captions: tuple[str, Sequence[tuple[int, int]]]) -> list[Tokens]:
    return [model.text_encoder.tokenize(caption, spans) for caption, spans in captions]


def test_a_new_network_that_points_begins_with_the_maps_of_one_that_does_not(text: Path) -> None:
    plain = small_ppmn(text, query="phrase").double()
    points = small_ppmn(text, pointing=POINTING, query="phrase").double()
    points.head.load_state_dict(plain.head.state_dict(), strict=False)
    images, captions = random_images((64, 96)), tokens(plain, TWO)
    with torch.no_grad():
        expected, _ = plain(images, captions)
        found, _ = points(images, captions)
    assert len(found.H) == len(expected.H) + 1
    for ours, theirs in zip(found.H, expected.H, strict=False):
        torch.testing.assert_close(ours, theirs)
    assert expected.presence is None and found.presence is not None and found.presence.shape == (2,)


@pytest.mark.parametrize("draws", [1, 3])
def test_a_batch_equals_its_images_whatever_their_sizes(model: PPMN, draws: int) -> None:
    assert model.head.pointing
    model.head.pointing.draws = draws
    images = random_images((64, 96), (96, 64), (64, 64))
    captions = tokens(model, TWO, ONE, TWO)
    with torch.no_grad():
        together, queries = model(images, captions)
        alone = [model([image], [caption])[0] for image, caption in zip(images, captions, strict=True)]
    assert together.presence is not None
    for number, (rows, presence) in enumerate(
        zip(together.H[-1].split(queries.counts), together.presence.split(queries.counts), strict=True)
    ):
        single = alone[number].H[-1]
        torch.testing.assert_close(rows[:, : single.shape[1], : single.shape[2]], single)
        torch.testing.assert_close(presence, alone[number].presence)


def test_captions_of_one_image_do_not_know_each_other(model: PPMN) -> None:
    images = random_images((64, 96), (64, 64))
    captions = tokens(model, TWO, ONE, ONE)
    with torch.no_grad():
        together, queries = model(images, captions, per_image=[2, 1])
        first, _ = model(images[:1], captions[:1])
        second, _ = model(images[:1], captions[1:2])
    assert queries.counts == (3, 1)
    height, width = first.H[-1].shape[1:]
    expected = torch.cat([first.H[-1], second.H[-1]])
    torch.testing.assert_close(together.H[-1][:3, :height, :width], expected)


def test_words_outside_of_a_phrase_change_where_it_points(model: PPMN) -> None:
    images = random_images((64, 96))
    left, right = tokens(model, ("a dog on the left", [(2, 5)]), ("a dog on the right", [(2, 5)]))
    with torch.no_grad():
        (a, _), (b, _) = model(images, [left]), model(images, [right])
    assert a.pointed and b.pointed
    assert not torch.allclose(a.pointed.logits, b.pointed.logits)


def test_an_image_and_a_caption_without_phrases(model: PPMN) -> None:
    captions = tokens(model, ("on the left", []), ("", []))
    with torch.no_grad():
        maps, queries = model(random_images((64, 96), (64, 64)), captions)
    assert queries.counts == (0, 0)
    assert maps.H[-1].shape[0] == 0


def test_presence_weighs_the_same_at_every_number_of_tokens() -> None:
    pointing = Pointing(12, 8, 32, POINTING)
    keys = torch.randn(1, 5, 16)
    vectors = torch.randn(3, 32)
    features = [_features(keys), _features(keys.repeat(1, 4, 1))]
    with torch.no_grad():
        few, many = (pointing.point(vectors, each, [3]).somewhere for each in features)
    torch.testing.assert_close(few, many)


def _features(keys: Tensor) -> "object":
    from ppmn.model.pointing import TokenFeatures

    empty = torch.zeros(1, 0)
    return TokenFeatures(keys, keys, (), (), empty, empty, empty, None)


@pytest.mark.parametrize("with_map", [True, False])
def test_filters_equal_their_equation(model: PPMN, with_map: bool) -> None:
    pointing = model.head.pointing
    assert pointing
    with torch.no_grad():
        features = model.head.encode(model.image_encoder(random_images((64, 96)))).tokens
        assert features
        height, width = features.pixels.shape[-2:]
        points, R = torch.tensor([0, 7, 20]), torch.randn(3, 16, dtype=torch.float64)
        H = torch.randn(3, height, width, dtype=torch.float64) if with_map else None
        drawn = pointing.draw(points, R, H, features, [3])
        x = torch.cat([features.tokens[0, points], pointing.phrase_norm(R)], -1)
        parameters = pointing.filter_out(torch.nn.functional.gelu(pointing.filter_hidden(x))).numpy()
    y, x = np.mgrid[:height, :width]
    grid = np.stack([(x + 0.5) / width * 2 - 1, (y + 0.5) / height * 2 - 1])  # (2, H, W)
    token_width = width // 2
    for row, point in enumerate(points.tolist()):
        w1, b1, w2, b2, w3, b3, gate = np.split(parameters[row], np.cumsum(pointing.sizes)[:-1])
        place = np.array(
            [(point % token_width + 0.5) / token_width, (point // token_width + 0.5) / (height / 2)]
        )
        relative = 2 * (grid - (place * 2 - 1)[:, None, None])
        response = np.zeros((height, width)) if H is None else H[row].numpy()
        z = np.concatenate([features.pixels[0].numpy(), relative, 0.25 * response[None]])
        z = np.maximum(np.einsum("oc,chw->ohw", w1.reshape(8, -1), z) + b1[:, None, None], 0)
        z = np.maximum(np.einsum("oc,chw->ohw", w2.reshape(8, 8), z) + b2[:, None, None], 0)
        expected = np.einsum("c,chw->hw", w3, z) + b3 + gate * response
        np.testing.assert_allclose(drawn[row].numpy(), expected, atol=1e-9)


def test_point_loss_is_minus_the_log_of_the_mass_inside() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [1.0, 1.0, 1.0]])
    nowhere = torch.tensor([0.5, -1.0, 2.0])
    inside = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    absent = torch.tensor([False, True, False])
    pointed = Pointed(logits, nowhere, torch.zeros(3, 4))
    first = math.exp(1) + math.exp(2) + math.exp(0) + math.exp(0.5)
    second = math.exp(0) + math.exp(1) + math.exp(3) + math.exp(-1)
    expected = -math.log((math.exp(1) + 0.5 * math.exp(2)) / first) - math.log(math.exp(-1) / second)
    found = point_loss(pointed, inside, absent, queries=2)  # the third has neither mask nor absence
    assert float(found) == pytest.approx(expected / 2, rel=1e-5)


def test_training_draws_from_tokens_inside_the_mask() -> None:
    torch.manual_seed(0)
    inside = (torch.rand(200, 30) > 0.8).float()
    inside[:, 3] = 1
    inside[:5] = 0
    logits = torch.randn(200, 30)
    points = tokens_inside(logits, inside)
    assert bool((inside[torch.arange(5, 200), points[5:]] > 0).all())
    assert torch.equal(points[:5], logits[:5].argmax(1))


def test_the_last_map_is_a_mean_with_the_details_of_the_best(model: PPMN) -> None:
    pointing = model.head.pointing
    assert pointing
    images, captions = random_images((64, 96)), tokens(model, TWO)
    with torch.no_grad():
        pointing.draws = 3
        found, queries = model(images, captions)
        features = model.encode(model.pyramid(images)).tokens
        assert found.pointed and features and found.certainty is not None
        R, H, counts = found.pointed.phrases, found.H[-2], queries.counts
        likely = found.pointed.logits.softmax(1).topk(3, 1)
        small = fn.avg_pool2d(H[:, None], 2)[:, 0]
        coarse = [
            pointing.draw(points, R, small, features.coarse(), counts).sigmoid()
            for points in likely.indices.T
        ]
        for row, tokens_of_row in enumerate(likely.indices):
            maps = torch.stack([drawn[row] for drawn in coarse])  # (3, h, w)
            agreement = torch.tensor(
                [[float((a * b).sum() / (a * a + b * b - a * b).sum()) for b in maps] for a in maps]
            )
            weights = likely.values[row] * (agreement.to(maps) @ likely.values[row])
            weights = weights / weights.sum()
            best = int(weights.argmax())
            correction = (weights[:, None, None] * maps).sum(0) - maps[best]
            points = tokens_of_row[best].repeat(len(R))
            full = pointing.draw(points, R, H, features, counts)[row].sigmoid()
            expected = full + fn.interpolate(correction[None, None], scale_factor=2, mode="bilinear")[0, 0]
            torch.testing.assert_close(found.H[-1][row].sigmoid(), expected.clamp(1e-6, 1 - 1e-6))
    assert bool(((found.certainty >= 0) & (found.certainty <= 1)).all())


def test_a_folder_keeps_pointing(text: Path, tmp_path: Path, model: PPMN) -> None:
    save_model(model.float(), tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.config.pointing == POINTING
    images, captions = random_images((64, 96)), tokens(model, ONE)
    with torch.no_grad():
        assert torch.equal(model(images, captions)[0].H[-1], again(images, captions)[0].H[-1])


def test_pointing_refuses_what_it_cannot_do(text: Path) -> None:
    with pytest.raises(InputError, match="channels is 12"):
        PointingConfig(channels=12)
    with pytest.raises(InputError, match="query phrase"):
        small_config(text, pointing=POINTING, query="word")
    with pytest.raises(InputError, match="count_padding"):
        ModelConfig(pointing=POINTING)


def test_only_phrases_known_to_be_present_or_absent_count_for_presence() -> None:
    logits = torch.tensor([2.0, -1.0, 7.0], requires_grad=True)
    present, absent = torch.tensor([True, False, False]), torch.tensor([False, True, False])
    loss = presence_loss(logits, present, absent)
    loss.backward()
    assert loss.item() == pytest.approx((math.log1p(math.exp(-2)) + math.log1p(math.exp(-1))) / 3)
    assert logits.grad is not None and logits.grad[2] == 0


def test_presence_depends_on_the_image_and_is_learned_with_the_rest(model: PPMN) -> None:
    captions = tokens(model, TWO)
    first, second = (model([image], captions)[0].presence for image in random_images((64, 96), (64, 96)))
    assert first is not None and second is not None and not torch.allclose(first, second)
    first.sum().backward()
    assert model.head.pointing and model.head.pointing.presence
    assert all(p.grad is not None for p in model.head.pointing.presence.parameters())
