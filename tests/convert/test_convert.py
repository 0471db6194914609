"""Checkpoints of every foreign form, at full size with cheap contents: what converts, and what is refused."""

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
import test_parity as parity
import torch
from support.models import bert_folder
from torch import Tensor
from transformers import BertConfig, BertModel

from ppmn.cli import main
from ppmn.config import ModelConfig, ResNetConfig
from ppmn.convert import key_maps as names
from ppmn.convert.convert import bert_from, convert, parts_of
from ppmn.convert.unpickle import read_checkpoint
from ppmn.errors import InputError
from ppmn.model.folder import load_model
from ppmn.model.network import Head
from ppmn.model.resnet import ResNetFPN

State = dict[str, Tensor]
ROUND_DEAD = {
    **{f"attention.attn.in_proj_{p}": s for p, s in (("weight", (768, 256)), ("bias", (768,)))},
    **{f"{n}.{p}": s for n in ("attention.attn.out_proj", "kernel_update_conv.fc_layer")
       for p, s in (("weight", (256, 256)), ("bias", (256,)))},
    **{f"kernel_update_conv.{n}.{p}": s for n in ("dynamic_layer", "input_layer")
       for p, s in (("weight", (512, 256)), ("bias", (512,)))},
    **{f"kernel_update_conv.{n}_gate.{p}": s for n in ("input", "update")
       for p, s in (("weight", (256, 256)), ("bias", (256,)))},
    **{f"{n}.{p}": (256,) for p in ("weight", "bias") for n in (
        "attention_norm", "ffn_norm", "cls_fcs.1", *(f"kernel_update_conv.{k}" for k in (
            "norm_in", "norm_out", "input_norm_in", "input_norm_out", "fc_norm")))},
    "ffn.layers.0.0.weight": (2048, 256), "ffn.layers.0.0.bias": (2048,),
    "ffn.layers.1.weight": (256, 2048), "ffn.layers.1.bias": (256,),
    "cls_fcs.0.weight": (256, 256), "fc_cls.weight": (80, 256), "fc_cls.bias": (80,),
}  # fmt: skip


class Values:
    """Tensors of any size that take no room: each a constant of its own."""

    def __init__(self) -> None:
        self.next = 0

    def __call__(self, shape: Any) -> Tensor:
        self.next += 1
        return torch.tensor(self.next / 4096).expand(tuple(shape))


def shapes(module: torch.nn.Module) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def head_state(rounds: int = 3) -> State:
    """The released head with its dead parameters."""
    value, ours = Values(), shapes(Head(256, 768, ModelConfig(rounds=rounds)))
    state = {theirs: value(ours[name]) for name, theirs in names.released_head_names(rounds).items()}
    for part, shape in (
        ("0.weight", (256, 256, 1, 1)),
        ("0.bias", (256,)),
        ("1.weight", (256,)),
        ("1.bias", (256,)),
    ):
        state[f"{names.NECK}aux_convs.{part}"] = value(shape)
    for n in range(rounds):
        state[f"{names.ROUND}{n}.topk_attn.attn.in_proj_weight"] = value((768, 256))
        state[f"{names.ROUND}{n}.topk_attn.attn.in_proj_bias"] = value((768,))
        state |= {f"{names.ROUND}{n}.{name}": value(shape) for name, shape in ROUND_DEAD.items()}
    return state


def image_state(config: ResNetConfig) -> State:
    """detectron2's panoptic FPN with some of its other heads."""
    value, ours = Values(), shapes(ResNetFPN(config, True))
    state = {theirs: value(ours[name]) for name, theirs in names.detectron2_names(config.depth).items()}
    state |= {
        "pixel_mean": value((3, 1, 1)),
        "proposal_generator.rpn_head.conv.weight": value((256, 256, 3, 3)),
    }
    return state | {"sem_seg_head.predictor.weight": value((54, 128, 1, 1))}


def torchvision_state(depth: int) -> State:
    value, ours = Values(), shapes(ResNetFPN(ResNetConfig(depth=depth, form="torchvision"), True))
    state = {theirs: value(ours[name]) for name, theirs in names.torchvision_names(depth).items()}
    return state | {
        "bn1.num_batches_tracked": torch.tensor(7),
        "fc.weight": value((1000, 512)),
        "fc.bias": value((1000,)),
    }


def bert_state(config: BertConfig, old: bool) -> State:
    """BERT with dead layers: the released code's cross layers, or the old layout's heads and spelling."""
    value = Values()
    with torch.device("meta"):
        ours = shapes(BertModel(config))
    state = {f"bert.{name}": value(shape) for name, shape in ours.items()}
    if not old:
        return state | {
            "bert.encoder.x_layers.0.visual_attention.att.query.weight": value((768, 768)),
            "bert.encoder.r_layers.2.attention.output.LayerNorm.weight": value((768,)),
            "bert.encoder.visn_fc.visn_fc.weight": value((768, 50176)),
        }
    state |= {
        "cls.predictions.bias": value((config.vocab_size,)),
        "cls.seq_relationship.weight": value((2, 768)),
    }
    spelling = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {
        next((n.replace(a, b) for a, b in spelling.items() if n.endswith(a)), n): t for n, t in state.items()
    }


def checkpoint(**states: State) -> dict[str, Any]:
    wrapped = {
        f"{part}_state": OrderedDict((f"module.{name}", tensor) for name, tensor in state.items())
        for part, state in states.items()
    }
    score = {"best_val_score": np.float64(0.594), "history": np.arange(6.0).reshape(2, 3)}
    return {"epoch": 13, **wrapped, "optimizer_state": {"state": {}, "param_groups": []}, **score}


def old_numpy(file: Path) -> Path:
    """The same file as NumPy 1 would have written it."""
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
    """A folder whose hundreds of megabytes do not stay."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As wide as bert-base, one layer deep."""
    folder = bert_folder(tmp_path_factory.mktemp("bert"))
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = BertConfig(
        vocab_size=vocabulary, num_hidden_layers=1, max_position_embeddings=64, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder)
    return folder


NARROW = ResNetConfig(depth=50, width=8)  # 256 channels in the pyramid all the same


def test_a_released_checkpoint_converts_whole(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "left behind as unused: 115 tensors, 5.66 M values" in said
    assert "roi_head.mask_head.*.kernel_update_conv.fc_norm.bias (3)" in said
    assert "bert.encoder.visn_fc.visn_fc.weight" in said
    model = load_model(place / "model")
    assert model.config == replace(ModelConfig(), text=model.config.text)
    theirs = names.released_head(head, 3)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.head.state_dict().items())
    theirs = names.detectron2_encoder(image, 101)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.image_encoder.state_dict().items())
    ours = model.text_encoder.bert.state_dict()
    assert all(torch.equal(tensor, text[f"bert.{name}"]) for name, tensor in ours.items())
    assert model.text_encoder.tokenize("a dog", [(2, 5)]).ids == (1, 5)


def test_the_synthetic_head_is_the_released_one(shared: Path) -> None:
    keys = json.loads((shared / "reference" / "small_a" / "state_keys.json").read_text())
    assert {name: list(tensor.shape) for name, tensor in head_state().items()} == keys


@pytest.mark.parametrize("form", [lambda file: file, old_numpy], ids=["numpy 2", "numpy 1"])
@pytest.mark.skipif(not parity.FOLDERS, reason="no fixture folder")
def test_a_converted_head_passes_parity(place: Path, bert: Path, form: Callable[[Path], Path]) -> None:
    case = parity.Fixture(parity.FOLDERS[0])
    file = place / "checkpoint.pth"
    dead = {name: tensor for name, tensor in head_state(case.L).items() if name not in case.state}
    torch.save(checkpoint(model=case.state | dead, fpn_model=image_state(NARROW)), file)
    command = [
        "convert",
        str(form(file)),
        "--text",
        str(bert),
        "--pixels",
        str(case.K),
        "-o",
        str(place / "model"),
    ]
    assert main(command) == 0
    case.head = lambda: load_model(place / "model").head  # type: ignore[method-assign]
    parity.settle_ties(case)
    parity.test_logits(case)


def test_detectron2_converts(place: Path, bert: Path) -> None:
    state = image_state(ResNetConfig())
    for protocol in (2, 4):
        arrays = {name: tensor.half().numpy() for name, tensor in state.items()}
        file = place / "model_final.pkl"
        file.write_bytes(pickle.dumps({"model": arrays, "__author__": "Detectron2 Model Zoo"}, protocol))
        part = parts_of(file)["image"]
        assert set(part.left) == {n for n in state if not n.startswith("backbone.")}
        theirs = names.detectron2_encoder(state, 101)
        assert all(torch.equal(tensor, theirs[name].half()) for name, tensor in part.tensors.items())
    small = {name: tensor.numpy() for name, tensor in image_state(NARROW).items()}
    file.write_bytes(pickle.dumps({"model": small}))
    assert main(["convert", str(file), "--text", str(bert), "-o", str(place / "model")]) == 0
    encoder = load_model(place / "model").image_encoder
    theirs = names.detectron2_encoder(image_state(NARROW), 50)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in encoder.state_dict().items())


@pytest.mark.parametrize("depth", [18, 50])
def test_torchvision_converts(place: Path, bert: Path, depth: int) -> None:
    state = torchvision_state(depth)
    torch.save(OrderedDict(state), place / "resnet.pth")
    model, report = convert([place / "resnet.pth"], str(bert), ModelConfig(count_padding=False))
    assert (model.config.image.depth, model.config.image.form) == (depth, "torchvision")
    table, ours = names.torchvision_names(depth), model.image_encoder.state_dict()
    assert all(torch.equal(ours[name], state[theirs]) for name, theirs in table.items())
    assert {name.split(".")[0] for name in set(ours) - set(table)} == {"lateral", "output"}
    assert any("fc.weight" in line for line in report)
    assert "head: fresh, not trained" in report


@pytest.mark.parametrize("name", ["config.json", "bert_config.json", None])
def test_the_old_bert_converts(place: Path, name: str | None) -> None:
    config = BertConfig(num_hidden_layers=2)
    state = bert_state(config, old=True)
    torch.save(state, place / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (place / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog"]))
    if name:
        plain = {"hidden_size": 768, "num_hidden_layers": 2, "vocab_size": 30522, "type_vocab_size": 2}
        (place / name).write_text(json.dumps(plain))
    encoder, part = bert_from(str(place), ModelConfig(), None)
    assert part is not None
    assert {n.split(".")[0] for n in part.left} == {"bert", "cls"}  # the pooler and the heads
    ours = encoder.bert.state_dict()
    assert torch.equal(ours["embeddings.LayerNorm.weight"], state["bert.embeddings.LayerNorm.gamma"])
    assert torch.equal(
        ours["encoder.layer.1.output.LayerNorm.bias"], state["bert.encoder.layer.1.output.LayerNorm.beta"]
    )
    assert encoder.tokenize("Dog", []).ids == (5,)


class Payload:
    """A pickle of this would make a file."""

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
    """A checkpoint of one of the formats and the arguments that convert it."""
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
def test_nothing_in_a_checkpoint_runs(
    place: Path, capsys: pytest.CaptureFixture[str], form: str, way: str
) -> None:
    witness = place / "witness.npy"
    payload = Payload(witness, way)
    pickle.loads(pickle.dumps(payload))
    assert witness.exists()  # it is dangerous indeed
    witness.unlink()
    command = written(form, {"model_state": {"module.x": torch.zeros(1)}, "best_val_score": payload}, place)
    assert main(["convert", *command, "-o", str(place / "out")]) == 2
    assert not witness.exists()
    said = capsys.readouterr().err
    assert said.startswith("ppmn: ")
    assert said.count("\n") == 1
    assert "refused" in said or form == "safetensors"
    assert not (place / "out").exists()


def test_bytes_do_not_pass_for_pointers(place: Path) -> None:
    array = np.array([None], dtype=object)
    for form in ("pickle", "torch"):
        (file,) = written(form, {"model": {"x": array}}, place)
        with pytest.raises(InputError, match="not plain numbers"):
            read_checkpoint(Path(file))


def test_arrays_are_read_as_numpy_wrote_them(place: Path) -> None:
    arrays = [np.arange(6).reshape(2, 3).astype(kind) for kind in ("f2", "<f4", ">f4", "f8", "i8", "u1", "?")]
    arrays += [np.asfortranarray(arrays[1]), arrays[1].T, np.zeros((0, 4), "f4"), np.array(3.0)]
    for protocol in range(2, 6):
        (place / "a.pkl").write_bytes(pickle.dumps(arrays, protocol))
        for ours, theirs in zip(read_checkpoint(place / "a.pkl"), arrays, strict=True):
            assert np.array_equal(ours.tensor().numpy(), theirs)
    scores = [np.float64(0.5), np.float32(0.25), np.int64(-3)]
    (place / "s.pkl").write_bytes(pickle.dumps(scores, 2))
    assert read_checkpoint(place / "s.pkl") == [0.5, 0.25, -3]


def test_what_does_not_fit_is_refused(place: Path, bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_a_truncated_checkpoint_is_refused(place: Path, form: str, kept: float) -> None:
    (file,) = written(
        form, {"model": {"conv1.weight": np.zeros(1000), "layer1.0.conv1.weight": np.ones(9)}}, place
    )
    whole = Path(file).read_bytes()
    Path(file).write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    with pytest.raises(InputError, match=r"truncated|refused"):
        parts_of(Path(file))


def test_the_command_names_what_is_wrong(place: Path, bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*command: str) -> str:
        assert main(["convert", *command, "-o", str(place / "out")]) == 2
        return capsys.readouterr().err

    assert "nowhere.pth" in said(str(place / "nowhere.pth"))
    torch.save(checkpoint(model=head_state(1)), place / "c.pth")
    assert "both" in said(str(place / "c.pth"), str(place / "c.pth"))
    assert "not paper" in said(str(place / "c.pth"), "--preset", "paper", "--text", str(bert))
    (place / "out").mkdir()
    (place / "out" / "config.json").write_text("{}")
    assert "already" in said("--text", str(bert))
