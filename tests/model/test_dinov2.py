"""The compact image encoder: a frozen transformer and a trained pyramid."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.models import bert_folder, random_images, small_config, small_ppmn
from support.precision import uses_bfloat16

from experiments.measure_compact import load_mean
from ppmn.config import DINOv2Config
from ppmn.data.panoptic import DataSpec
from ppmn.errors import InputError
from ppmn.grounding import torch_runtime
from ppmn.grounding.grounder import Grounder
from ppmn.model import attention
from ppmn.model import folder as weights
from ppmn.model.attention import QUERY_CHUNK
from ppmn.model.dinov2 import DINOV2_WEIGHTS, DINOv2FPN, attend, embed, resize_cubic
from ppmn.model.preprocess import Preprocess
from ppmn.model.pyramid import ValidSizes
from ppmn.presets import PRESETS
from ppmn.training.dataset import TrainingSet, epoch_batches, read_batches
from ppmn.training.encoder_inputs import open_caches
from ppmn.training.feature_cache import FeatureCaches, encoder_fingerprint
from ppmn.training.initial import initial_model
from ppmn.training.run_folder import RunFolder
from ppmn.training.sources import open_training_sources
from ppmn.training.trainer import Trainer

IMAGE = DINOv2Config(channels=32, layers=(6, 12))


@pytest.fixture(scope="module")
def encoder() -> DINOv2FPN:
    torch.manual_seed(0)
    return DINOv2FPN(IMAGE).eval()


def test_sha256_of_the_shipped_weights() -> None:
    digest = hashlib.sha256(DINOV2_WEIGHTS.read_bytes()).hexdigest()
    assert digest == "7d0e282f5e60f4e84b96ae3b0e902b85620fd92f6446dca2f92d94b9e74051b0"


@pytest.mark.parametrize("blocks", [0, 3, 12])
def test_batch_equals_singles(blocks: int) -> None:
    encoder = DINOv2FPN(replace(IMAGE, trainable_blocks=blocks)).eval()
    images = random_images((56, 84), (56, 84), (84, 56))
    with torch.no_grad():
        together = encoder(images)
        for row, image in enumerate(images):
            for level, alone in zip(together.levels, encoder([image]).levels, strict=True):
                _, _, height, width = alone.shape
                assert torch.allclose(level[row, :, :height, :width], alone[0], atol=1e-4)
    assert together.valid_sizes == ValidSizes(((2, 3), (2, 3), (3, 2)), stride=8)


@uses_bfloat16
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("tokens", [1, QUERY_CHUNK, 2 * QUERY_CHUNK + 3])
def test_bfloat16_attention_is_near_float32_attention(
    encoder: DINOv2FPN, tokens: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "fused_attention_uses_bfloat16", lambda: fused)
    torch.manual_seed(3)
    query, key, value = torch.randn(3, 2, 6, tokens, 64).bfloat16()
    with torch.no_grad():
        ours, _ = attend(encoder, query, key, value, None, 0.125)
    wanted = torch.nn.functional.scaled_dot_product_attention(query.float(), key.float(), value.float())
    assert ours.dtype == torch.bfloat16
    assert torch.allclose(ours.float(), wanted.transpose(1, 2), atol=0.03)


@uses_bfloat16
def test_bfloat16_encoding_is_near_float32_encoding(encoder: DINOv2FPN) -> None:
    images = random_images((56, 84), (84, 56))
    with torch.inference_mode():
        exact = encoder(images)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = encoder(images).float()
    assert rounded.valid_sizes == exact.valid_sizes
    for level, wanted in zip(rounded.levels, exact.levels, strict=True):
        assert level.dtype == torch.float32
        assert (level - wanted).norm() < 0.05 * wanted.norm()


@uses_bfloat16
def test_bfloat16_only_where_the_processor_is_faster_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_ppmn(bert_folder(tmp_path / "bert"))
    image, caption = Image.linear_gradient("L").resize((90, 60)), "a red ball on the grass"
    exact = Grounder(model, device="cpu").ground(image, caption)
    model.config = replace(model.config, image=DINOv2Config(precision="bfloat16"))
    for faster in (False, True):
        same = not faster
        monkeypatch.setattr(torch_runtime, "bfloat16_is_faster", lambda faster=faster: faster)
        for wanted, found in zip(exact, Grounder(model, device="cpu").ground(image, caption), strict=True):
            assert np.array_equal(found.map, wanted.map) is same
            assert abs(found.map - wanted.map).mean() < 0.03


@pytest.mark.parametrize("size", [(42, 56), (37, 37), (2, 5), (100, 22)])
def test_positions_are_resized_as_torch_does(size: tuple[int, int]) -> None:
    table = torch.randn(37, 37, 6, generator=torch.Generator().manual_seed(4))
    rows = resize_cubic(table, size[0])
    ours = resize_cubic(rows.transpose(0, 1), size[1]).transpose(0, 1)  # (h, w, 6)
    wanted = torch.nn.functional.interpolate(table.permute(2, 0, 1)[None], size=size, mode="bicubic")
    assert torch.allclose(ours, wanted[0].permute(1, 2, 0), atol=1e-4)


def test_embeddings_equal_those_of_transformers(encoder: DINOv2FPN) -> None:
    images = torch.randn(2, 3, 56, 84, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        ours, wanted = embed(encoder.vit.embeddings, images), encoder.vit.embeddings(images)
    assert torch.allclose(ours, wanted, atol=1e-5)


def test_sizes_of_the_pyramid(encoder: DINOv2FPN) -> None:
    with torch.no_grad():
        levels = encoder(random_images((56, 84))).levels
    assert [tuple(level.shape[1:]) for level in levels] == [(32, 16, 24), (32, 8, 12), (32, 4, 6), (32, 2, 3)]
    assert encoder.feature_count(56, 84) == 2 * 384 * 4 * 6


@pytest.mark.parametrize("blocks", [1, 3, 6, 8, 12])
def test_trainable_blocks_change_nothing_before_training(encoder: DINOv2FPN, blocks: int) -> None:
    apart = DINOv2FPN(replace(IMAGE, trainable_blocks=blocks)).eval()
    apart.load_state_dict(encoder.state_dict())
    (image,) = random_images((56, 84))
    with torch.no_grad():
        (kept,) = apart.features([image])
        assert sum(value.numel() for value in kept.values()) == apart.feature_count(56, 84)
        for level, mine in zip(encoder([image]).levels, apart.pyramid([kept]).levels, strict=True):
            assert torch.allclose(level, mine, atol=1e-5)
    with pytest.raises(InputError, match="trainable_blocks"):
        replace(IMAGE, trainable_blocks=blocks, layers=(6,))
    with pytest.raises(InputError, match="trainable_blocks"):
        DINOv2Config(trainable_blocks=13)


@pytest.mark.parametrize("size", [(1, 1), (480, 640), (640, 480), (3000, 200), (37, 1900)])
def test_images_are_resized_to_multiples_of_two_patches(encoder: DINOv2FPN, size: tuple[int, int]) -> None:
    height, width = Preprocess(56, 84, encoder.multiple).size(*size)
    assert height % 28 == width % 28 == 0 and min(height, width) >= 28
    assert encoder.padded_size(height, width) == (height, width)


def test_frozen_weights_are_not_stored(tmp_path: Path) -> None:
    config = replace(small_config(bert_folder(tmp_path / "bert")), image=IMAGE)
    model = weights.build_model(config)
    weights.save_model(model, tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert not [name for name in stored if name.startswith("image_encoder.vit.")]
    assert [name for name in stored if name.startswith("image_encoder.adapter.")]
    again = weights.load_model(tmp_path / "model")
    assert again.config.image.sha256 == hashlib.sha256(DINOV2_WEIGHTS.read_bytes()).hexdigest()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    with pytest.raises(InputError, match="layers"):
        replace(IMAGE, layers=(13,))


def test_mean_of_models(text: Path, tmp_path: Path) -> None:
    states = []
    for name in ("a", "b", "c"):
        model = weights.build_model(replace(small_config(text), image=replace(IMAGE, trainable_blocks=1)))
        weights.save_model(model, tmp_path / name)
        states.append(model.state_dict())
    mean = load_mean("+".join(str(tmp_path / name) for name in ("a", "b", "c")), "84x112")
    assert mean.preprocess == Preprocess(84, 112, 28)
    for name, value in mean.state_dict().items():
        assert torch.allclose(value, sum(state[name] for state in states) / 3, atol=1e-6), name


def test_fingerprint_of_cached_tokens(encoder: DINOv2FPN) -> None:
    mine = encoder_fingerprint(*encoder.frozen_part())
    assert encoder_fingerprint(*DINOv2FPN(replace(IMAGE, channels=64)).frozen_part()) == mine
    later = DINOv2FPN(replace(IMAGE, trainable_blocks=3))
    kept = encoder_fingerprint(*later.frozen_part())
    with torch.no_grad():
        later.vit.encoder.layer[9].norm1.weight.add_(1)
    assert encoder_fingerprint(*later.frozen_part()) == kept != mine  # trained blocks are no part of it
    assert encoder_fingerprint(*DINOv2FPN(replace(IMAGE, layers=(12,))).frozen_part()) != mine


@pytest.mark.parametrize("blocks", [0, 2])
def test_training_on_cached_tokens(scenes: Path, text: Path, tmp_path: Path, blocks: int) -> None:
    model = replace(small_config(text), image=replace(IMAGE, trainable_blocks=blocks))
    quick = {"batch_size": 4, "workers": 0, "validation_fraction": 0.0, "max_grad_norm": 0.0, "warmup": 0}
    config = replace(PRESETS["compact"](), model=model, lr_image=1e-4 if blocks else 0.0, **quick)
    losses = []
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        torch.manual_seed(0)
        network = initial_model(config, None)
        sources = open_training_sources([DataSpec(scenes)])
        caches = open_caches(config, cache, network, sources) if cache else FeatureCaches()
        run = Trainer(config, network, TrainingSet(sources, config, network, caches), RunFolder(tmp_path))
        numbers = epoch_batches(run.data, 0, 4)[0]
        items = run.readable(next(read_batches(run.data, 0, [numbers])))
        before = {name: value.clone() for name, value in network.image_encoder.state_dict().items()}
        losses.append(run.step(items, 10)["loss"])
        after = network.image_encoder.state_dict()
        changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
        last = tuple(f"vit.encoder.layer.{11 - n}." for n in range(blocks))
        assert changed and all(name.startswith(("adapter.", *last)) for name in changed)
        assert all(any(name.startswith(prefix) for name in changed) for prefix in last)
        weights.save_model(network, tmp_path / "model", half=True)
        stored = load_file(tmp_path / "model" / "model.safetensors")
        assert {name for name in stored if ".vit." in name} == {
            f"image_encoder.{n}" for n in changed if "vit" in n
        }
        halves = {value.dtype for name, value in stored.items() if not name.startswith("text_encoder.")}
        assert halves == {torch.float16}
        assert weights.load_model(tmp_path / "model").config.image.trainable_blocks == blocks
    assert losses[1] == losses[2]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def test_learning_rate_without_trainable_blocks_is_refused(text: Path) -> None:
    model = replace(small_config(text), image=IMAGE)
    with pytest.raises(InputError, match="trainable_blocks"):
        initial_model(replace(PRESETS["compact"](), model=model, lr_image=1e-4), None)
