"""Models on the hub, against a stand-in on this machine: uploaded with a card, downloaded, never pickled."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub import Hub, running_hub
from support.models import small_ppmn

import ppmn
from ppmn.cli import main
from ppmn.errors import InputError
from ppmn.model.folder import save_model
from ppmn.model.hub import is_hub_name
from ppmn.training.publish import model_card


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    constants = pytest.importorskip("huggingface_hub.constants")
    with running_hub() as (hub, address):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        yield hub


@pytest.fixture
def folder(text: Path, tmp_path: Path) -> Path:
    """A model folder as a run leaves it, with files that are not part of the model."""
    folder = tmp_path / "run"
    save_model(small_ppmn(text), folder)
    recipe = {"epochs": 3, "batch_size": 4, "lr": 2e-4, "lr_text": 0.0, "lr_image": 0.0}
    recipe |= {"schedule": "cosine", "negative_phrases": 1, "seed": 7}
    data = {"mine:train": {"weight": 2.0, "fingerprint": "0"}}
    (folder / "train.json").write_text(json.dumps({"init": "abc", "data": data, "config": recipe}))
    recalls = [31.25, 42.5, 40.0]
    lines = [{"epoch": n, "validation": {"overall": v, "stuff": None}} for n, v in enumerate(recalls, 1)]
    text_lines = [json.dumps(line) for line in lines]
    (folder / "log.jsonl").write_text("\n".join([*text_lines, '{"epo']))
    (folder / "best.pt").write_bytes(b"a pickle")
    return folder


def test_a_model_goes_to_the_hub_and_comes_back(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(folder), "me/dogs", "--private"]) == 0
    assert "/me/dogs/commit/" in capsys.readouterr().out
    files = hub.repos["me/dogs"]
    assert {"config.json", "model.safetensors", "README.md", "text/config.json"} <= set(files)
    assert not any(name.endswith((".pt", ".bin", ".jsonl")) or name == "train.json" for name in files)
    assert hub.private["me/dogs"] and hub.tokens["commit"] == "Bearer hf_secret"
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    files["weights.bin"] = b"a pickle"  # somebody else put it there
    grounder = ppmn.load("me/dogs", device="cpu")
    assert "weights.bin" not in hub.downloads and "model.safetensors" in hub.downloads
    local = ppmn.load(folder, device="cpu")
    for name, tensor in local.model.state_dict().items():
        assert tensor.equal(grounder.model.state_dict()[name])


def test_a_downloaded_model_is_found_again_without_a_network(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ppmn.push_to_hub(folder, "me/dogs")
    ppmn.load("me/dogs", device="cpu")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    assert ppmn.load("me/dogs", device="cpu").model.config.rounds == 2
    with pytest.raises(InputError, match="me/cats is neither a folder nor a model that can be downloaded"):
        ppmn.load("me/cats")


def test_what_the_hub_does_not_have_is_one_sentence(hub: Hub) -> None:
    with pytest.raises(InputError, match="me/nothing is neither a folder nor a model") as caught:
        ppmn.load("me/nothing")
    assert "\n" not in str(caught.value)


def test_only_models_are_uploaded_and_only_to_names(hub: Hub, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json is missing"):
        ppmn.push_to_hub(tmp_path, "me/dogs")
    with pytest.raises(InputError, match="'dogs' is not a name on the hub"):
        ppmn.push_to_hub(folder, "dogs")


def test_names_on_the_hub() -> None:
    assert all(map(is_hub_name, ["me/dogs", "me/dogs@v1.0", "a-b/c.d_e"]))
    assert not any(map(is_hub_name, ["dogs", "/me/dogs", "../me/dogs", "a/b/c", "me/", "~/dogs", "./dogs"]))


def test_card_says_what_the_run_measured(folder: Path) -> None:
    card = model_card(folder, "me/dogs")
    assert card.startswith("---\nlibrary_name: ppmn\n") and 'ppmn.load("me/dogs")' in card
    assert "| overall |" in card and "| 42.5 |" in card and "after epoch 2" in card
    assert "mine:train, weight 2" in card and "lr 0.0002" in card and "the mean response" in card
    (folder / "log.jsonl").unlink()
    assert "Nothing was measured" in model_card(folder, "me/dogs")
