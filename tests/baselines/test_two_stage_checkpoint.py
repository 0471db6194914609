"""The released two-stage checkpoint through `ppmn convert`."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import Values
from support.stage_one import CAPTION, SPANS, released_shapes, small_two_stage, some_proposals

from ppmn.baselines.region_choice import TwoStageGrounder
from ppmn.baselines.two_stage import RELEASED_PREFIX, TwoStageConfig
from ppmn.baselines.two_stage_folder import load_two_stage
from ppmn.cli import main
from ppmn.convert.two_stage_checkpoint import convert_two_stage
from ppmn.errors import InputError


class Vocabulary:
    """As many pieces as bert-base-uncased has."""

    def __len__(self) -> int:
        return 30_522


def checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """What the released training script saves, on several GPUs."""
    named = OrderedDict((f"module.{RELEASED_PREFIX}{name}", tensor) for name, tensor in state.items())
    optimizer = {"state": {0: {"step": 3, "exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 1e-5}]}
    return {"epoch": 11, "model_state": named, "optimizer_state": optimizer, "accuracy": 0.554}


def test_a_checkpoint_becomes_a_folder(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = small_two_stage(text, heads=1)
    file, out = tmp_path / "model_final.pth", tmp_path / "two_stage"
    torch.save(checkpoint(model.state_dict()), file)
    assert main(["convert", str(file), "--text", str(text), "-o", str(out)]) == 0
    assert f"two-stage: {len(model.state_dict())} tensors" in capsys.readouterr().out
    loaded = load_two_stage(out)
    assert loaded.config.mask_regions and loaded.config.plural_rule == "text"
    ours = loaded.model.state_dict()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in model.state_dict().items())
    expected = TwoStageGrounder(model, tokenizer).ground(some_proposals(5), CAPTION, SPANS)
    assert loaded.ground(some_proposals(5), CAPTION, SPANS) == expected


def test_the_released_tensors_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[tuple[Any, dict[str, Any]]] = []  # 1 GB if it were copied
    monkeypatch.setattr(
        "ppmn.convert.two_stage_checkpoint.copy_tensors",
        lambda model, tensors, where: copied.append((model, tensors)),
    )
    value = Values()
    state = {name: value(shape) for name, shape in released_shapes().items()}
    model, report = convert_two_stage(state, Vocabulary(), "model_final.pth")
    ((_, tensors),) = copied
    assert {n: t.shape for n, t in tensors.items()} == {n: t.shape for n, t in model.state_dict().items()}
    assert model.config == TwoStageConfig()
    assert report == ["two-stage: 465 tensors, 251.99 M values from model_final.pth"]


@pytest.mark.parametrize(
    "gone, sentence",
    [
        (
            "encoder.cross_layers.1.lang_self_att.self.key.bias",
            "1 missing (encoder.cross_layers.1.lang_self_a",
        ),
        ("encoder.visn_fc.visn_fc.weight", "no complete two-stage baseline (at 'encoder.visn_fc.visn_fc.wei"),
        ("pooler.dense.bias", "1 missing (pooler.dense.bias)"),
    ],
)
def test_a_missing_tensor_is_refused(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], gone: str, sentence: str
) -> None:
    state = small_two_stage(text)[0].state_dict()
    del state[gone]
    torch.save(checkpoint(state), tmp_path / "c.pth")
    assert main(["convert", str(tmp_path / "c.pth"), "--text", str(text), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_tensors_and_files_too_many_are_refused(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = small_two_stage(text)[0].state_dict()
    file = tmp_path / "c.pth"
    torch.save(checkpoint({**state, "encoder.more.weight": torch.zeros(1)}), file)
    command = ["convert", str(file), "--text", str(text), "-o", str(tmp_path / "out")]
    assert main(command) == 2
    assert "1 not expected (encoder.more.weight)" in capsys.readouterr().err
    assert main(["convert", str(file), *command[1:]]) == 2
    assert "convert it without other files" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"the tokenizer has 30522 word pieces and c\.pth"):
        convert_two_stage({f"{RELEASED_PREFIX}{n}": t for n, t in state.items()}, Vocabulary(), "c.pth")


def test_a_folder_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a model folder: .*config.json is missing"):
        load_two_stage(tmp_path)
    (tmp_path / "config.json").write_text('{"method": "mcn"}')
    with pytest.raises(InputError, match="names the method 'mcn', not 'two-stage'"):
        load_two_stage(tmp_path)
    (tmp_path / "config.json").write_text('{"method": "two-stage", "words": "letters"}')
    with pytest.raises(InputError, match="words is 'letters'; it must be one of pieces, words"):
        load_two_stage(tmp_path)
