"""The network: encoders against reference outputs; padding, batches, S and L."""

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from support.benchmark import write_data
from support.models import random_images, small_config, small_ppmn
from transformers import BertConfig, BertModel, BertTokenizer

from bench.head import TranscribedHead
from ppmn.cli import main
from ppmn.config import DINOv2Config, ModelConfig, ResNetConfig
from ppmn.convert.key_maps import detectron2_encoder
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import ppmn2022_sizes
from ppmn.grounding.runtime import RawMaps
from ppmn.model.folder import save_model
from ppmn.model.lcpa import blur
from ppmn.model.losses import ppm_losses, total_loss
from ppmn.model.network import Head
from ppmn.model.preprocess import Preprocess
from ppmn.model.pyramid import Pyramid
from ppmn.model.resnet import ResNetFPN
from ppmn.model.text import TextEncoder, Tokens, window_starts
from ppmn.presets import paper

CAPTIONS = ["two dogs on the grass", "a red ball and the blue sky, a person left of the tree"]
SPANS = [[(0, 8), (12, 21)], [(2, 10), (15, 27)]]


def test_head_equals_its_plain_transcription() -> None:
    torch.manual_seed(0)
    head = Head(256, 768, ModelConfig(rounds=2, pixels=20))
    p2, p3, p4, p5 = (torch.randn(1, 256, 64 // s, 96 // s) for s in (2, 4, 8, 16))
    phrases = torch.randn(5, 768)
    with torch.no_grad():
        ours = head(Pyramid((p2, p3, p4, p5)), phrases, [5]).H
        plain = TranscribedHead(head)(Pyramid((p2, p3, p4, p5)), phrases)
    for H, doubled in zip(ours, plain, strict=True):
        up = torch.nn.functional.interpolate(H[None], scale_factor=2.0, mode="bilinear")
        assert torch.allclose(up, doubled, atol=1e-4)


def test_fpn_tiny(shared: Path) -> None:
    folder = shared / "reference" / "fpn_tiny"
    state = {k: v.float() for k, v in load_file(folder / "backbone_state.fp16.safetensors").items()}
    io = load_file(folder / "io.safetensors")
    encoder = ResNetFPN(ResNetConfig(depth=101, width=8, channels=16), count_padding=True).eval()
    encoder.load_state_dict(detectron2_encoder(state, 101))
    with torch.no_grad():
        levels = encoder([io["image0"].flip(0), io["image1"].flip(0)]).levels  # stored as BGR
    for ours, name in zip(levels, ("p2", "p3", "p4", "p5"), strict=True):
        scale = io[name].abs().mean().item()
        assert torch.allclose(ours, io[name], rtol=1e-4, atol=1e-4 * scale), name


def test_resize_equals_detectron2(shared: Path) -> None:
    folder = shared / "reference" / "data_mini"
    for item in json.loads((folder / "expected" / "meta.json").read_text())["val"]:
        with Image.open(folder / "images" / "val2017" / f"{item['image_id']:012}.jpg") as image:
            bgr = Preprocess(800, 1333)(image.convert("RGB")).flip(0).contiguous()
        assert hashlib.sha256(bgr.numpy().tobytes()).hexdigest() == item["sha256_chw_uint8"]


def test_bert_tiny(shared: Path) -> None:
    folder = shared / "reference" / "bert_tiny"
    meta = json.loads((folder / "meta.json").read_text())
    io = load_file(folder / "io.safetensors")
    state = load_file(folder / "bert_state.fp16.safetensors")
    bert = BertModel(BertConfig(**meta["config"]), add_pooling_layer=False).eval()
    bert.load_state_dict(
        {k.removeprefix("bert."): v.float() for k, v in state.items() if "pooler" not in k}, strict=False
    )
    encoder = TextEncoder(bert, BertTokenizer(vocab=str(folder / "vocab.txt")), "word")
    for index, (caption, pieces) in enumerate(zip(meta["captions"], meta["tokens"], strict=True)):
        ids = encoder.tokenize(caption, []).ids
        assert encoder.tokenizer.convert_ids_to_tokens(list(ids))[: len(pieces)] == pieces
        real = io["input_ids"][index][: io["input_mask"][index].sum()].tolist()
        assert [101, *ids[:228], 102] == real
        with torch.no_grad():
            hidden = encoder.run([real[1:-1]])[0]
        assert torch.allclose(hidden, io["lang_feat"][index, : len(real)], atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aggregation": "mutan"},
        {"aggregation": "sk"},
        {"query": "phrase"},
        {"variant": "paper"},
        {"selection": "maxpool"},
        {"pixels": 0},
        {"rounds": 0},
        {"pixels": 500},
    ],
    ids=str,
)
def test_batch_equals_singles(text: Path, changes: dict[str, object]) -> None:
    model = small_ppmn(text, **changes).double()
    images = random_images((64, 96), (90, 70))
    tokens = [model.text_encoder.tokenize(c, s) for c, s in zip(CAPTIONS, SPANS, strict=True)]
    with torch.no_grad():
        together, queries = model(images, tokens)
        alone = [model([p], [t])[0] for p, t in zip(images, tokens, strict=True)]
    for index, H in enumerate(together.H):
        for part, single in zip(H.split(list(queries.counts)), alone, strict=True):
            height, width = single.H[index].shape[-2:]
            assert torch.allclose(part[:, :height, :width], single.H[index], atol=1e-6)


def test_padding_of_captions_changes_nothing(text: Path) -> None:
    model = small_ppmn(text).double()
    (image,) = random_images((64, 96))
    short = model.text_encoder.tokenize(CAPTIONS[0], SPANS[0])
    long = model.text_encoder.tokenize(" ".join([CAPTIONS[1]] * 9), SPANS[1])
    none = model.text_encoder.tokenize(CAPTIONS[1], [])
    with torch.no_grad():
        alone = model([image], [short])[0].H[-1]
        batched = model([image] * 3, [short, long, none])[0].H[-1][: len(alone)]
    assert (alone - batched).abs().max() <= 1e-6


def test_padding_counts_as_image_if_configured(text: Path) -> None:
    model = small_ppmn(text, count_padding=True)
    tokens = [model.text_encoder.tokenize(CAPTIONS[0], SPANS[0])]
    small, large = random_images((64, 64), (64, 160))
    with torch.no_grad():
        alone = model([small], tokens)[0].H[-1]
        batched = model([small, large], tokens * 2)[0].H[-1][: len(alone)]
    assert batched.shape[-1] > alone.shape[-1]
    assert not torch.allclose(alone, batched[..., : alone.shape[-1]], atol=1e-3)


def test_upsampled_convolution_with_and_without_gradients(text: Path) -> None:
    model = small_ppmn(text)
    images, tokens = random_images((64, 96)), [model.text_encoder.tokenize(CAPTIONS[0], SPANS[0])]
    with torch.no_grad():
        quick = model(images, tokens)[0].H[-1]
    assert torch.allclose(quick, model(images, tokens)[0].H[-1], atol=1e-5)


@given(st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_blur_is_upsampling_and_downsampling(height: int, width: int) -> None:
    H = torch.randn(2, height, width)
    up = torch.nn.functional.interpolate(H[None], scale_factor=2.0, mode="bilinear")
    down = torch.nn.functional.interpolate(up, (height, width), mode="bilinear")[0]
    assert torch.allclose(blur(H), down, atol=1e-5)


def test_long_caption_keeps_every_word(text: Path) -> None:
    encoder = TextEncoder.from_source(str(text), "word").eval()
    caption = " ".join(f"the red dog {n}" for n in range(100))
    spans = [(m, m + 7) for m in range(len(caption)) if caption.startswith("red dog", m)]
    tokens = encoder.tokenize(caption, spans)
    assert len(tokens.ids) > encoder.window
    with torch.no_grad():
        queries = encoder([tokens])
    assert queries.sizes == (2,) * 100
    assert queries.vectors.isfinite().all()


@given(st.integers(0, 400), st.integers(2, 60))
def test_windows_cover_all_pieces(length: int, window: int) -> None:
    starts = window_starts(length, window)
    covered = {i for start in starts for i in range(start, min(start + window, length))}
    assert covered == set(range(length))
    assert all(b - a <= max(window // 2, 1) for a, b in pairwise(starts))


def test_short_caption_is_one_window(text: Path) -> None:
    encoder = TextEncoder.from_source(str(text), "word").eval()
    ids = encoder.tokenize("two dogs on the grass", []).ids
    with torch.no_grad():
        (vectors,) = encoder.encode([ids])
        hidden = encoder.run([ids])[0][1:-1]
    assert torch.equal(vectors, hidden)


def test_phrases_are_aligned_by_characters(text: Path) -> None:
    encoder = TextEncoder.from_source(str(text), "word")
    tokens = encoder.tokenize("The RED-dog's  ball", [(4, 13), (15, 19)])
    words = encoder.tokenizer.convert_ids_to_tokens(list(tokens.ids))
    assert [[words[i] for i in p] for p in tokens.pieces] == [["red", "-", "dog", "'", "s"], ["ball"]]
    with pytest.raises(InputError, match="no word piece"):
        encoder.tokenize("a   dog", [(2, 3)])


def test_phrase_map_is_the_mean_of_word_maps(text: Path) -> None:
    encoder = TextEncoder.from_source(str(text), "word")
    queries = encoder([Tokens((5, 6, 7), ((0, 1), (2,)))])
    M = np.random.default_rng(0).random((3, 4, 5), np.float32)
    maps = RawMaps([M], [], queries.sizes).phrase_maps(M)
    np.testing.assert_allclose(maps, np.stack([M[:2].mean(0), M[2]]), rtol=1e-6)


def test_losses_of_valid_pixels_and_of_parts_of_a_batch() -> None:
    H, Y = [torch.randn(3, 8, 8)], (torch.rand(3, 8, 8) > 0.5).float()
    valid = torch.ones(3, 8, 8)
    valid[:, 5:] = 0
    config = ModelConfig(rounds=0)
    cut = total_loss(ppm_losses([H[0][:, :5]], Y[:, :5], config))
    assert torch.allclose(total_loss(ppm_losses(H, Y, config, valid)), cut)
    whole = total_loss(ppm_losses(H, Y, config))
    parts = [
        total_loss(ppm_losses([H[0][i]], Y[i], config, pixels=192, queries=3))
        for i in (slice(0, 1), slice(1, 3))
    ]
    assert torch.allclose(sum(parts), whole)


def test_save_and_load_a_configuration(tmp_path: Path, text: Path) -> None:
    for config in (ModelConfig(), paper().model, small_config(text)):
        config.save(tmp_path / "config.json")
        assert ModelConfig.load(tmp_path / "config.json") == config
    broken_files = (
        ('{"version": 2, "varant": "paper"}', "varant"),
        ('{"version": 2, "variant": "papr"}', "papr"),
        ('{"version": 9}', "version 9"),
        ("[1", "JSON"),
    )
    for broken, word in broken_files:
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(InputError, match=word):
            ModelConfig.load(tmp_path / "config.json")


@pytest.mark.parametrize("source", ["package:no_such_package", "./no/such/folder"])
def test_missing_text_encoder_is_refused(source: str) -> None:
    with pytest.raises(InputError):
        TextEncoder.from_source(source, "word")


def test_one_resize_rule_for_every_image_size() -> None:
    assert Preprocess(800, 1333).size(155, 430) == (481, 1333)
    assert ppmn2022_sizes(155, 430)[0] == (481, 1333)
    assert Preprocess(800, 1333).size(1, 5000) == (1, 1333)


def test_image_of_an_odd_size_under_protocol_ppmn2022(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_data(tmp_path / "data")
    for file in (*data.rglob("7.jpg"), *data.rglob("7.png")):
        with Image.open(file) as image:
            image.resize((430, 155), Image.Resampling.NEAREST).save(file)
    panoptic = data / "annotations" / "panoptic_val2017.json"
    panoptic.write_text(
        panoptic.read_text().replace('"height": 3, "width": 6', '"height": 155, "width": 430')
    )
    save_model(small_ppmn(text, short_side=800, long_side=1333, rounds=0), tmp_path / "model")
    options = ["--data", f"{data}:val2017", "--protocol", "ppmn2022"]
    assert main(["evaluate", "--model", str(tmp_path / "model"), *options]) == 0
    assert "ppmn2022" in capsys.readouterr().out


def test_configuration_without_a_version_is_read(tmp_path: Path) -> None:
    image = {"depth": 101, "kind": "dinov2", "channels": 128, "short": 588, "long": 784, "layers": [6, 9, 12]}
    old = {"wiring": "released", "image": image | {"tuned": 3}, "edge": 0.5, "peak": 0.9}
    (tmp_path / "config.json").write_text(json.dumps(old | {"supervised_rounds": "all"}))
    config = ModelConfig.load(tmp_path / "config.json")
    assert config.image == DINOv2Config(channels=128, trainable_blocks=3)
    assert (config.short_side, config.long_side) == (588, 784)
    assert (config.relative_threshold, config.hysteresis_peak) == (0.5, 0.9)
