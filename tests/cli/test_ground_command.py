"""`ppmn ground`: one image, folders, lists, and what goes wrong."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from support.models import bert_folder, small_ppmn

from ppmn.cli import main
from ppmn.cli.ground import describe
from ppmn.grounding.batch import find_images
from ppmn.grounding.grounder import load
from ppmn.model.folder import save_model
from ppmn.phrases.language import language_warning

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
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file)
    return file


def test_one_image_is_reported_and_saved(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, out = save_image(tmp_path / "image.png"), tmp_path / "out"
    command = ["ground", str(image), CAPTION, "--model", model, "-o", str(out)]
    assert main([*command, "--formats", "json,png,panoptic,html,rounds"]) == 0
    text = capsys.readouterr().out
    assert "[two dogs]" in text and "not grounded: image" in text
    assert str(out / "page.html") in text and f"{out / 'masks'}: 4 masks" in text
    files = ("grounding.json", "overlay.png", "masks", "panoptic.png", "panoptic.json", "page.html")
    assert {file.name for file in out.iterdir()} == {*files, "rounds.png"}
    assert len(list((out / "masks").iterdir())) == 4


def test_a_reader_that_closes_early_ends_the_command_quietly(model: str, tmp_path: Path) -> None:
    image = save_image(tmp_path / "image.png")
    command = [
        sys.executable,
        "-m",
        "ppmn.cli",
        "ground",
        str(image),
        "a dog",
        "--model",
        model,
        "--json",
        "-",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141 and "dog" in errors
    assert "Traceback" not in errors and "BrokenPipe" not in errors


def test_empty_standard_input_is_named(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert main(["ground", "-", "a dog", "--model", model]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "ppmn: nothing came from standard input, where the image should be"
    ]


def test_a_caption_in_another_language_is_warned_of(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    image, out = save_image(tmp_path / "images" / "image.png"), tmp_path / "out"
    warning = language_warning("ein Hund auf der Wiese")
    assert warning and warning.startswith("the caption seems to be German; only English is supported")
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


def pipe_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_caption_that_is_not_text_is_one_sentence(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = save_image(tmp_path / "image.png")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a d\xf6g"), encoding="utf-8"))
    assert main(["ground", str(image), "-", "--model", model]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("ppmn: the caption on standard input is not text in UTF-8")


def test_a_folder_called_masks_hides_no_file(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, out = save_image(tmp_path / "image.png"), tmp_path / "masks"
    assert main(["ground", str(image), "a dog", "--model", model, "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert str(out / "page.html") in shown and f"{out / 'masks'}: 1 masks" in shown


def test_files_of_an_earlier_caption_are_removed(model: str, tmp_path: Path) -> None:
    image, out = save_image(tmp_path / "image.png"), tmp_path / "out"
    command = ["--model", model, "-o", str(out), "--formats", "png,cutouts", "--threshold", "0"]
    assert main(["ground", str(image), CAPTION, *command]) == 0
    assert len(list((out / "masks").iterdir())) == len(list((out / "cutouts").iterdir())) == 4
    for name in ("mine.png", "001_Mine.png", "001_mine.txt"):
        (out / "masks" / name).write_text("")
    assert main(["ground", str(image), "a cat", *command]) == 0
    own = {"mine.png", "001_Mine.png", "001_mine.txt"}
    assert {file.name for file in (out / "masks").iterdir()} == {"001_cat.png", *own}
    assert [file.name for file in (out / "cutouts").iterdir()] == ["001_cat.png"]
    assert main(["ground", str(image), "a cat", *command, "--boxes"]) == 0
    assert {file.name for file in (out / "masks").iterdir()} == own


def test_image_from_standard_input_and_json_to_standard_output(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = save_image(tmp_path / "image.png")
    pipe_in(monkeypatch, image.read_bytes())
    command = ["--model", model, "--threshold", "0.3"]
    assert main(["ground", "-", CAPTION, *command, "--json", "-", "-o", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    assert "[two dogs]" in shown.err and "page.html" in shown.err
    assert json.loads(shown.out) == json.loads((tmp_path / "out" / "grounding.json").read_text())
    file = tmp_path / "found.json"
    assert main(["ground", str(image), CAPTION, *command, "--json", str(file)]) == 0
    assert json.loads(file.read_text())["annotations"] == json.loads(shown.out)["annotations"]
    pipe_in(monkeypatch, b"no image")
    assert main(["ground", "-", CAPTION, *command, "--json", "-"]) == 2
    shown = capsys.readouterr()
    assert not shown.out.startswith("{") and "the image is not an image" in shown.err


def test_it_says_that_nothing_was_saved(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(save_image(tmp_path / "image.png"))
    assert main(["ground", image, "a dog", "--model", model]) == 0
    assert capsys.readouterr().err == "Nothing was saved: -o DIR saves masks, a page and JSON.\n"
    assert main(["ground", image, "a dog", "--model", model, "-o", str(tmp_path / "out")]) == 0
    assert not capsys.readouterr().err


def test_folder_that_cannot_be_written_is_noticed_before_grounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    image = str(save_image(tmp_path / "image.png"))
    for source in (image, str(tmp_path)):
        # a model that does not exist would be refused next
        command = ["ground", source, "a dog", "--model", "none-such", "-o"]
        assert main([*command, str(Path(image) / "out")]) == 2
        assert "out cannot be made" in capsys.readouterr().err
        with monkeypatch.context() as patch:  # root may write everywhere
            patch.setattr("tempfile.TemporaryFile", refuse)
            assert main([*command, str(tmp_path / "out")]) == 2
        assert "out cannot be written to (Permission denied)" in capsys.readouterr().err


def test_wrong_input_is_one_sentence(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(save_image(tmp_path / "image.png"))
    wrong = [
        (["ground", str(tmp_path / "none.jpg"), "a dog"], "is not a file"),
        (["ground", image], "there is no caption"),
        (["ground", image, "and of the"], "the caption"),
        (["ground", image, "this image"], "only image"),
        (["ground", image, "a dog", "--threshold", "2"], "threshold is 2.0"),
        (["ground", image, "a dog", "--formats", "gif"], "the format gif is not known"),
        (["ground", str(tmp_path), "a dog"], "-o DIR"),
        (["ground", str(tmp_path), "a dog", "-o", str(tmp_path)], "another folder for the results"),
        (["ground", str(tmp_path), "a dog", "-o", str(tmp_path / "out"), "--json", "-"], "for one image"),
        (["ground", "-", "-"], "not both"),
        (["ground", image, "a dog", "--json", str(tmp_path / "none" / "a.json")], "missing or read-only"),
        (["ground", image, "a dog", "-o", image], "cannot be made"),
        (["ground", image, "a dog", "--device", "cuda:9"], "the device cuda:9"),
        (["ground", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "out")], "none.jsonl cannot be read"),
        (["ground", str(tmp_path / "empty"), "-o", str(tmp_path / "out")], "hold no image"),
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
    command = ["ground", str(listed), "-o", str(out), "--model", model, "--formats", "json"]
    assert main(command) == 1
    shown = capsys.readouterr()
    assert "2 grounded, 3 failed" in shown.out
    assert f"{images / 'missing.png'} is not a file" in shown.err.splitlines()  # the path stands there once
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


def test_another_model_or_image_is_grounded_again(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, trained = tmp_path / "images", tmp_path / "model"
    save_image(images / "a.png")
    save_image(images / "b.png")
    shutil.copytree(model, trained)
    command = ["ground", str(images), "a dog", "-o", str(tmp_path / "out"), "--model", str(trained)]
    for grounded in ("2 grounded", "0 grounded"):
        assert main([*command, "--formats", "json"]) == 0
        assert grounded in capsys.readouterr().out
    save_image(images / "a.png", 40, 50)
    assert main([*command, "--formats", "json"]) == 0
    assert "1 grounded" in capsys.readouterr().out
    weights = load_file(trained / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in weights.items()}, trained / "model.safetensors")
    assert main([*command, "--formats", "json"]) == 0
    assert "2 grounded" in capsys.readouterr().out


def test_a_file_where_results_should_be_is_one_sentence(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    for name in ("a.png", "2024/a.png", "2024/b.png"):
        save_image(photos / name)
    command = ["ground", str(photos / "2024"), "a dog", "-o", str(photos), "--model", model]
    assert main([*command, "--formats", "json"]) == 1
    shown = capsys.readouterr()
    (error,) = shown.err.splitlines()
    assert f"{photos / 'a.png'} is a file, not a folder for results" in error
    assert "1 grounded, 1 failed" in shown.out and (photos / "a.png").is_file()
    assert not (photos / "a.png.partial").exists()


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
    common = ["--model", model, "--formats", "json"]
    assert main(["ground", str(images), "a cat", "-o", str(tmp_path / "one"), *common]) == 0
    assert main(["ground", str(images), "-o", str(tmp_path / "each"), *common]) == 1
    assert [f.name for f in sorted((tmp_path / "each").iterdir())] == ["a.png", "results.jsonl"]


def test_folders_are_read_with_their_sub_folders(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = tmp_path / "images", tmp_path / "images" / "b" / "out"
    for name in ("z.png", "b/x.jpg", "a/x.jpg", "a/x.png", "a/c/x.jpg", ".hidden/x.jpg", "a/.x.jpg"):
        save_image(images / name)
    command = ["ground", str(images), "a dog", "-o", str(out), "--model", model, "--formats", "json,png"]
    assert main(command) == 0
    names = ["z.png", "a/x.jpg", "a/x.png", "a/c/x.jpg", "b/x.jpg"]
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [row["folder"] for row in rows] == names
    assert all((out / name / "overlay.png").is_file() for name in names)
    capsys.readouterr()
    save_image(images / "a" / "a.jpg")
    assert main(command) == 0  # the results inside of the folder are not taken for images
    shown = capsys.readouterr().out
    assert "5 of 6 images were finished before" in shown and "1 grounded, 0 failed" in shown


def test_images_are_found_one_at_a_time(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png")
    save_image(tmp_path / "b" / "c.PNG")
    found = find_images(tmp_path)
    assert next(found).name == "a.png"
    save_image(tmp_path / "b" / "a.png")  # in a folder that was not read yet
    assert [file.name for file in found] == ["a.png", "c.PNG"]


def test_missing_decoders_are_named_and_counted(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    images = tmp_path / "images"
    save_image(images / "a.png")
    for name in ("b.heic", "c.HEIC", "d.heif"):
        (images / name).write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    assert main(["ground", str(images), "a dog", "-o", str(tmp_path / "out"), "--model", model]) == 1
    shown = capsys.readouterr()
    *named, counted = shown.err.splitlines()
    assert [line.split(" is an HEIC file")[0] for line in named] == [
        str(images / name) for name in ("b.heic", "c.HEIC", "d.heif")
    ]
    assert counted == "3 HEIC files were not read: pip install 'ppmn[heif]'"
    assert "1 grounded, 3 failed" in shown.out


def test_terminal_report_is_coloured_and_free_of_control_characters(model: str, tmp_path: Path) -> None:
    image = save_image(tmp_path / "image.png")
    grounding = load(model).ground(image, "[a \x1bc dog] and [grass\x07]", threshold=1.0)
    plain, coloured = describe(grounding, colors=False), describe(grounding, colors=True)
    assert "\x1b" not in plain and "\x07" not in plain and "nowhere above 1" in plain
    assert "\x1b[1;38;2;" in coloured and "\x07" not in coloured and "\x1bc" not in coloured
