"""`ppmn ground`: one image, folders, lists, and what goes wrong."""

import io
import json
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from support.models import bert_folder, small_ppmn

from ppmn.cli import main
from ppmn.cli.ground import describe
from ppmn.grounding.grounder import load
from ppmn.model.folder import save_model

CAPTION = "In this image there are two dogs on the green grass, and a red ball under the blue sky."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small untrained model."""
    root = tmp_path_factory.mktemp("model")
    save_model(small_ppmn(bert_folder(root / "bert")), root / "model")
    return str(root / "model")


def save_image(file: Path, width: int = 90, height: int = 60) -> Path:
    image = Image.new("RGB", (width, height), "skyblue")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, height // 2, width, height), fill="forestgreen")
    draw.ellipse((width // 3, height // 3, 2 * width // 3, 2 * height // 3), fill="firebrick")
    file.parent.mkdir(exist_ok=True)
    image.save(file)
    return file


def test_one_image_is_reported_and_saved(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, out = save_image(tmp_path / "image.png"), tmp_path / "out"
    command = ["ground", str(image), CAPTION, "--model", model, "-o", str(out)]
    assert main([*command, "--format", "json,png,panoptic,html,rounds"]) == 0
    text = capsys.readouterr().out
    assert "[two dogs]" in text and "not grounded: image" in text
    assert str(out / "page.html") in text and f"{out / 'masks'}: 4 masks" in text
    files = ("grounding.json", "overlay.png", "masks", "panoptic.png", "panoptic.json", "page.html")
    assert {file.name for file in out.iterdir()} == {*files, "rounds.png"}
    assert len(list((out / "masks").iterdir())) == 4


def test_a_caption_in_another_language_is_warned_of(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    image, out = save_image(tmp_path / "images" / "image.png"), tmp_path / "out"
    warning = "the caption seems to be German; only English is supported"
    command = [str(image), "ein Hund auf der Wiese", "--model", model, "-o", str(out), "--format", "json"]
    assert main(["ground", *command]) == 0
    printed = capsys.readouterr()
    assert printed.err.count(f"warning: {warning}") == 1 and warning not in printed.out
    assert json.loads((out / "grounding.json").read_text())["info"]["warnings"] == [warning]
    assert main(["ground", str(image.parent), *command[1:]]) == 0
    assert f"{image}: {warning}" in caplog.text
    assert main(["ground", str(image), "a dog", "--model", model]) == 0
    assert "warning" not in capsys.readouterr().err


def test_caption_from_standard_input_and_boxes(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, out = save_image(tmp_path / "image.png"), tmp_path / "out"
    monkeypatch.setattr(sys, "stdin", io.StringIO("[a dog]\n"))
    assert main(["ground", str(image), "-", "--model", model, "-o", str(out), "--boxes"]) == 0
    annotations = json.loads((out / "grounding.json").read_text())["annotations"]
    assert [set(row) & {"segmentation", "bbox"} for row in annotations] == [{"bbox"}]


def test_wrong_input_is_one_sentence(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(save_image(tmp_path / "image.png"))
    wrong = [
        (["ground", str(tmp_path / "none.jpg"), "a dog"], "is not a file"),
        (["ground", image], "there is no caption"),
        (["ground", image, "and of the"], "the caption"),
        (["ground", image, "this image"], "only image"),
        (["ground", image, "a dog", "--threshold", "2"], "threshold is 2.0"),
        (["ground", image, "a dog", "--format", "gif"], "the format gif is not known"),
        (["ground", str(tmp_path), "a dog"], "-o DIR"),
        (["ground", image, "a dog", "-o", image], "cannot be made"),
        (["ground", image, "a dog", "--device", "cuda:9"], "the device cuda:9"),
        (["ground", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "out")], "none.jsonl cannot be read"),
        (["ground", str(tmp_path / "empty"), "-o", str(tmp_path / "out")], "holds no image"),
    ]
    (tmp_path / "empty").mkdir()
    for command, expected in wrong:
        assert main([*command, "--model", model]) == 2
        error = capsys.readouterr().err
        assert expected in error and len(error.strip().splitlines()) == 1


def test_list_is_restartable_and_continues_after_failures(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = tmp_path / "images", tmp_path / "out"
    save_image(images / "a.png")
    save_image(images / "b.jpg", 40, 50)
    (images / "c.png").write_bytes(b"no image")
    rows = [{"image": name, "caption": CAPTION} for name in ("a.png", "c.png", "b.jpg", "missing.png")]
    listed = images / "list.jsonl"
    listed.write_text("\n".join([*map(json.dumps, rows), "not json", ""]))
    command = ["ground", str(listed), "-o", str(out), "--model", model, "--format", "json"]
    assert main(command) == 1
    shown = capsys.readouterr()
    assert "2 grounded, 3 failed" in shown.out
    assert "c.png is not an image" in shown.err and "line 5 is not an image with a caption" in shown.err
    assert sorted(file.name for file in out.iterdir() if file.is_dir()) == ["000001_a", "000003_b"]
    before = (out / "000001_a" / "grounding.json").stat().st_mtime_ns
    save_image(images / "c.png")
    with (out / "results.jsonl").open("a") as results:
        results.write('{"key": "cut sho')
    assert main(command) == 1
    assert "2 of 5 images were finished before" in capsys.readouterr().out
    assert (out / "000001_a" / "grounding.json").stat().st_mtime_ns == before
    assert (out / "000002_c" / "grounding.json").is_file()
    assert main([*command, "--threshold", "0.3"]) == 1  # other settings: nothing is skipped
    assert "3 grounded" in capsys.readouterr().out


def test_list_may_mark_phrases(model: str, tmp_path: Path) -> None:
    save_image(tmp_path / "images" / "a.png")
    listed = tmp_path / "images" / "list.jsonl"
    listed.write_text(json.dumps({"image": "a.png", "caption": "two dogs on grass", "spans": [[4, 8]]}))
    assert main(["ground", str(listed), "-o", str(tmp_path / "out"), "--model", model]) == 0
    (result,) = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    assert [phrase["text"] for phrase in result["phrases"]] == ["dogs"]
    assert result["image"].endswith("a.png") and result["folder"] == "000001_a"


def test_folder_takes_one_caption_or_a_text_file_per_image(model: str, tmp_path: Path) -> None:
    images = tmp_path / "images"
    for name in ("a.png", "b.png"):
        save_image(images / name)
    (images / "a.txt").write_text("two dogs\n")
    common = ["--model", model, "--format", "json"]
    assert main(["ground", str(images), "a cat", "-o", str(tmp_path / "one"), *common]) == 0
    assert main(["ground", str(images), "-o", str(tmp_path / "each"), *common]) == 1
    assert [f.name for f in sorted((tmp_path / "each").iterdir())] == ["000001_a", "results.jsonl"]


def test_terminal_report_is_coloured_and_free_of_control_characters(model: str, tmp_path: Path) -> None:
    image = save_image(tmp_path / "image.png")
    grounding = load(model).ground(image, "[a \x1bc dog] and [grass\x07]", threshold=1.0)
    plain, coloured = describe(grounding, colors=False), describe(grounding, colors=True)
    assert "\x1b" not in plain and "\x07" not in plain and "nowhere above 1" in plain
    assert "\x1b[1;38;2;" in coloured and "\x07" not in coloured and "\x1bc" not in coloured
