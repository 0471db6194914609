"""Checkpoints in every format of other projects: which ones convert, and which are refused."""

import json
import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import NARROW, bert_state, checkpoint, head_state, image_state, torchvision_state
from support.models import bert_folder
from support.parity import SeededFixture
from transformers import BertConfig, BertModel

from ppmn.cli import main
from ppmn.config import ModelConfig, ResNetConfig
from ppmn.convert import key_maps
from ppmn.convert.convert import bert_from, convert, parts_of
from ppmn.convert.unpickle import read_checkpoint
from ppmn.errors import InputError
from ppmn.model.folder import load_model


def old_numpy(file: Path) -> Path:
    """The same file as written by NumPy 1."""
    old = file.with_name(f"old_{file.name}")
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(old, "w") as target:
        for item in source.namelist():
            data = source.read(item)
            target.writestr(
                item, data.replace(b"numpy._core", b"numpy.core") if item.endswith(".pkl") else data
            )
    return old


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed after each test, as its files are large."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT as wide as bert-base, with one layer."""
    folder = bert_folder(tmp_path_factory.mktemp("bert"))
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = BertConfig(
        vocab_size=vocabulary, num_hidden_layers=1, max_position_embeddings=64, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder)
    return folder


def test_released_checkpoint_converts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = BertConfig()
    head, image, text = head_state(), image_state(ResNetConfig()), bert_state(base, old=False)
    file = place / "checkpoint.pth"
    torch.save(checkpoint(model=head, fpn_model=image, bert_model=text), file)
    assert file.stat().st_size < 2e6
    vocabulary = place / "bert"
    vocabulary.mkdir()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog"]
    (vocabulary / "vocab.txt").write_text("\n".join(pieces + [f"[unused{n}]" for n in range(30522 - 6)]))
    assert main(["convert", str(file), "--text", str(vocabulary), "-o", str(place / "model")]) == 0
    said = capsys.readouterr().out
    assert "not used: 115 tensors, 5.66 M values" in said
    assert "roi_head.mask_head.*.kernel_update_conv.fc_norm.bias (3)" in said
    assert "bert.encoder.visn_fc.visn_fc.weight" in said
    model = load_model(place / "model")
    assert model.config == replace(ModelConfig(), text=model.config.text)
    theirs = key_maps.released_head(head, 3)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.head.state_dict().items())
    theirs = key_maps.detectron2_encoder(image, 101)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.image_encoder.state_dict().items())
    ours = model.text_encoder.bert.state_dict()
    assert all(torch.equal(tensor, text[f"bert.{name}"]) for name, tensor in ours.items())
    assert model.text_encoder.tokenize("a dog", [(2, 5)]).ids == (1, 5)


def test_synthetic_head_has_the_released_names(shared: Path) -> None:
    keys = json.loads((shared / "reference" / "small_a" / "state_keys.json").read_text())
    assert {name: list(tensor.shape) for name, tensor in head_state().items()} == keys


@pytest.mark.parametrize("form", [lambda file: file, old_numpy], ids=["numpy 2", "numpy 1"])
def test_converted_head_passes_parity(place: Path, bert: Path, form: Callable[[Path], Path]) -> None:
    fixture = SeededFixture()
    file = place / "checkpoint.pth"
    unused = {name: tensor for name, tensor in head_state().items() if name not in fixture.state}
    torch.save(checkpoint(model=fixture.state | unused, fpn_model=image_state(NARROW)), file)
    options = ["--text", str(bert), "--pixels", str(fixture.pixels), "-o", str(place / "model")]
    assert main(["convert", str(form(file)), *options]) == 0
    with torch.no_grad():
        fixture.check_maps(load_model(place / "model").head)


def test_detectron2_converts(place: Path, bert: Path) -> None:
    state = image_state(ResNetConfig())
    for protocol in (2, 4):
        arrays = {name: tensor.half().numpy() for name, tensor in state.items()}
        file = place / "model_final.pkl"
        file.write_bytes(pickle.dumps({"model": arrays, "__author__": "Detectron2 Model Zoo"}, protocol))
        part = parts_of(file)["image"]
        assert set(part.unused) == {n for n in state if not n.startswith("backbone.")}
        theirs = key_maps.detectron2_encoder(state, 101)
        assert all(torch.equal(tensor, theirs[name].half()) for name, tensor in part.tensors.items())
    small = {name: tensor.numpy() for name, tensor in image_state(NARROW).items()}
    file.write_bytes(pickle.dumps({"model": small}))
    assert main(["convert", str(file), "--text", str(bert), "-o", str(place / "model")]) == 0
    encoder = load_model(place / "model").image_encoder
    theirs = key_maps.detectron2_encoder(image_state(NARROW), 50)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in encoder.state_dict().items())


@pytest.mark.parametrize("depth", [18, 50])
def test_torchvision_converts(place: Path, bert: Path, depth: int) -> None:
    state = torchvision_state(depth)
    torch.save(OrderedDict(state), place / "resnet.pth")
    model, report = convert([place / "resnet.pth"], str(bert), ModelConfig(count_padding=False))
    assert (model.config.image.depth, model.config.image.form) == (depth, "torchvision")
    table, ours = key_maps.torchvision_names(depth), model.image_encoder.state_dict()
    assert all(torch.equal(ours[name], state[theirs]) for name, theirs in table.items())
    assert {name.split(".")[0] for name in set(ours) - set(table)} == {"lateral", "output"}
    assert any("fc.weight" in line for line in report)
    assert "head: untrained" in report


@pytest.mark.parametrize("name", ["config.json", "bert_config.json", None])
def test_old_bert_converts(place: Path, name: str | None) -> None:
    config = BertConfig(num_hidden_layers=2)
    state = bert_state(config, old=True)
    torch.save(state, place / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (place / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog"]))
    if name:
        plain = {"hidden_size": 768, "num_hidden_layers": 2, "vocab_size": 30522, "type_vocab_size": 2}
        (place / name).write_text(json.dumps(plain))
    encoder, part = bert_from(str(place), ModelConfig(), None)
    assert part is not None
    assert {n.split(".")[0] for n in part.unused} == {"bert", "cls"}  # the pooler and the heads
    ours = encoder.bert.state_dict()
    assert torch.equal(ours["embeddings.LayerNorm.weight"], state["bert.embeddings.LayerNorm.gamma"])
    assert torch.equal(
        ours["encoder.layer.1.output.LayerNorm.bias"], state["bert.encoder.layer.1.output.LayerNorm.beta"]
    )
    assert encoder.tokenize("Dog", []).ids == (5,)


class Payload:
    """Unpickling this creates a file."""

    def __init__(self, witness: Path, way: str) -> None:
        self.witness, self.way = witness, way

    def __reduce__(self) -> Any:
        touch = f"__import__('pathlib').Path({str(self.witness)!r}).touch()"
        return {
            "system": (os.system, (f"touch {self.witness}",)),
            "exec": (exec, (touch,)),
            "touch": (Path.touch, (self.witness,)),
            "numpy": (np.save, (str(self.witness), 1)),
        }[self.way]


def written(form: str, content: Any, folder: Path) -> list[str]:
    """Write a checkpoint in a format; returns the arguments that convert it."""
    if form == "bert folder":
        (folder / "bert").mkdir()
        torch.save(content, folder / "bert" / "pytorch_model.bin")
        return ["--text", str(folder / "bert")]
    file = folder / {"pickle": "model.pkl", "safetensors": "model.safetensors"}.get(form, "model.pth")
    if form in ("pickle", "safetensors"):
        file.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=form == "torch")
    return [str(file)]


@pytest.mark.parametrize("form", ["torch", "torch before 1.6", "pickle", "safetensors", "bert folder"])
@pytest.mark.parametrize("way", ["system", "exec", "touch", "numpy"])
def test_no_code_in_a_checkpoint_runs(
    place: Path, capsys: pytest.CaptureFixture[str], form: str, way: str
) -> None:
    witness = place / "witness.npy"
    payload = Payload(witness, way)
    pickle.loads(pickle.dumps(payload))
    assert witness.exists()  # the payload works
    witness.unlink()
    command = written(form, {"model_state": {"module.x": torch.zeros(1)}, "best_val_score": payload}, place)
    assert main(["convert", *command, "-o", str(place / "out")]) == 2
    assert not witness.exists()
    said = capsys.readouterr().err
    assert said.startswith("ppmn: ")
    assert said.count("\n") == 1
    assert "refused" in said or form == "safetensors"
    assert not (place / "out").exists()


def test_object_arrays_are_refused(place: Path) -> None:
    array = np.array([None], dtype=object)
    for form in ("pickle", "torch"):
        (file,) = written(form, {"model": {"x": array}}, place)
        with pytest.raises(InputError, match="not plain numbers"):
            read_checkpoint(Path(file))


def test_numpy_arrays_are_read(place: Path) -> None:
    arrays = [np.arange(6).reshape(2, 3).astype(kind) for kind in ("f2", "<f4", ">f4", "f8", "i8", "u1", "?")]
    arrays += [np.asfortranarray(arrays[1]), arrays[1].T, np.zeros((0, 4), "f4"), np.array(3.0)]
    for protocol in range(2, 6):
        (place / "a.pkl").write_bytes(pickle.dumps(arrays, protocol))
        for ours, theirs in zip(read_checkpoint(place / "a.pkl"), arrays, strict=True):
            assert np.array_equal(ours.tensor().numpy(), theirs)
    scores = [np.float64(0.5), np.float32(0.25), np.int64(-3)]
    (place / "s.pkl").write_bytes(pickle.dumps(scores, 2))
    assert read_checkpoint(place / "s.pkl") == [0.5, 0.25, -3]


def test_tensors_that_do_not_fit_are_refused(
    place: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(content: Any, *words: str) -> None:
        torch.save(content, place / "c.pth")
        assert main(["convert", str(place / "c.pth"), "--text", str(bert), "-o", str(place / "out")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert all(word in said for word in words), said

    head = head_state(1)
    gone = {name: tensor for name, tensor in head.items() if "fc_mask" not in name}
    refused(checkpoint(model=gone), "lacks 2 of", "fc_mask.bias")
    refused(
        checkpoint(model=head | {"rpn_head.more.weight": torch.zeros(1)}), "1 tensors", "rpn_head.more.weight"
    )
    refused(
        checkpoint(model=head | {"rpn_head.init_kernels.bias": torch.zeros(9)}), "project_phrases.bias (9,)"
    )
    wide = image_state(NARROW)
    refused({n: t for n, t in wide.items() if "res4.3" not in n}, "lacks", "res4.3")
    refused({n: t for n, t in wide.items() if "res4.5" not in n}, "blocks")
    refused(wide | {"backbone.fpn_lateral9.weight": torch.zeros(1)}, "fpn_lateral9")
    refused({"weight": torch.zeros(1)}, "neither", "weight")
    refused([1, 2], "list")
    refused({"model_state": None}, "NoneType")
    refused({"bert.embeddings.word_embeddings.weight": torch.zeros(9, 4)}, "BERT")


@pytest.mark.parametrize("form", ["torch", "torch before 1.6", "pickle"])
@pytest.mark.parametrize("kept", [0, 5, 40, 0.5, 0.99])
def test_truncated_checkpoint_is_refused(place: Path, form: str, kept: float) -> None:
    (file,) = written(
        form, {"model": {"conv1.weight": np.zeros(1000), "layer1.0.conv1.weight": np.ones(9)}}, place
    )
    whole = Path(file).read_bytes()
    Path(file).write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    with pytest.raises(InputError, match=r"truncated|refused"):
        parts_of(Path(file))


def test_errors_of_the_command(place: Path, bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*command: str) -> str:
        assert main(["convert", *command, "-o", str(place / "out")]) == 2
        return capsys.readouterr().err

    assert "nowhere.pth" in said(str(place / "nowhere.pth"))
    torch.save(checkpoint(model=head_state(1)), place / "c.pth")
    assert "both" in said(str(place / "c.pth"), str(place / "c.pth"))
    torch.save(torchvision_state(18), place / "r.pth")
    assert "is dinov2" in said(str(place / "r.pth"), "--preset", "compact")
    assert "not paper" in said(str(place / "c.pth"), "--preset", "paper", "--text", str(bert))
    (place / "out").mkdir()
    (place / "out" / "config.json").write_text("{}")
    assert "already" in said("--text", str(bert))
