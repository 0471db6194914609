"""The command line as a whole: its parsers, exit codes and log."""

import argparse
import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.models import small_ppmn
from support.training import arguments

from ppmn import cli
from ppmn.cli import build_parser, main
from ppmn.demo import main as demo
from ppmn.errors import InputError
from ppmn.model.folder import save_model
from ppmn.samples import installed_samples


def parsers(
    parser: argparse.ArgumentParser | None = None,
) -> Iterator[tuple[argparse.ArgumentParser, argparse.Action]]:
    """Every argument of every sub-command, with its parser."""
    parser = parser or build_parser()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            listed = {choice.dest: choice.help for choice in action._choices_actions}
            for name, command in action.choices.items():
                assert listed[name], f"{command.prog} has no help"
                yield from parsers(command)
        else:
            yield parser, action


def test_every_argument_has_a_help_text() -> None:
    missing = [f"{parser.prog} {action.dest}" for parser, action in parsers() if not action.help]
    assert not missing


def test_output_option_is_named_alike_everywhere() -> None:
    outputs = [(parser.prog, action) for parser, action in parsers() if action.dest in ("out", "output")]
    assert {tuple(action.option_strings[:2]) for _, action in outputs} == {("-o", "--out")}
    commands = {"ground", "export", "convert", "data scenes", "data narrate", "train", "evaluate", "compare"}
    commands.add("ablate")
    assert {prog.removeprefix("ppmn ") for prog, _ in outputs} == commands


def test_help_texts_can_be_formatted() -> None:
    for parser in {parser for parser, _ in parsers()}:
        assert parser.format_help()


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, ppmn.cli\n"
        "try: ppmn.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'pyarrow', 'fastapi', 'numpy', 'PIL', 'tqdm'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ground" in done.stdout


def test_module_runs_as_a_script() -> None:
    command = [sys.executable, "-m", "ppmn.cli", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("ppmn ")


def replace_ground(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> list[str]:
    def run(args: argparse.Namespace) -> None:
        logging.getLogger("ppmn.somewhere").info("loaded %s", args.image)
        logging.getLogger("ppmn.somewhere").warning("slow")
        logging.getLogger("ppmn.somewhere").debug("hidden")
        if error:
            raise error

    monkeypatch.setattr(cli.ground, "run", run)
    return ["ground", "a.png", "a dog"]


def test_bad_input_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(replace_ground(monkeypatch, InputError("the image is empty"))) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "ppmn: the image is empty"


def test_interrupt_is_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(replace_ground(monkeypatch, KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "ppmn: interrupted"


def test_log_is_shown_once_and_plainly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(replace_ground(monkeypatch, None)) == 0
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("loaded a.png\n", "slow\n")


def test_wrong_size_is_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("800", "0x3", "ax3", "-1x3"):
        with pytest.raises(SystemExit):
            main(["profile", f"--size={size}"])
        assert "is not a size; 800x1216 is one" in capsys.readouterr().err


def test_progress_bars_are_not_printed_into_pipes(
    scenes: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [
        ["data", "scenes", "-o", str(tmp_path / "drawn"), "--count", "2"],
        ["data", "narrate", str(scenes), "-o", str(tmp_path / "narratives.json")],
        arguments(scenes, text, tmp_path / "run", "--epochs", "1"),
        ["evaluate", "--model", str(tmp_path / "run"), "--data", str(scenes)],
    ]
    for command in commands:
        assert main(command) == 0
        assert capsys.readouterr().err == ""


def test_demo_runs_without_the_packages_of_the_photos(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("skimage", "sklearn", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("ppmn.demo.installed_samples", installed_samples.__wrapped__)
    save_model(small_ppmn(text), tmp_path / "model")
    assert demo(str(tmp_path / "model"), tmp_path / "out") == 0
    assert (tmp_path / "out" / "page.html").is_file()


WITHOUT_NETWORK = """
import sys, time
time.sleep = lambda seconds: None  # between retries
from ppmn.cli import main
sys.exit(main(["convert", "-o", sys.argv[1]]))
"""


def test_convert_without_a_network_is_one_sentence(tmp_path: Path) -> None:
    proxy = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}  # nobody listens there
    environment = {**os.environ, **proxy, "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-c", WITHOUT_NETWORK, str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and not done.stdout
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("ppmn: no text encoder could be loaded from bert-base-uncased")


def test_evaluate_needs_no_extra_but_for_curves(
    scenes: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    core = {re.split("[>=<]", name)[0] for name in project["dependencies"]}
    extras = {"matplotlib", "tensorboard", "supervision", "onnx", "fastapi", "pyarrow"} - core
    for package in extras:
        for module in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    save_model(small_ppmn(text), tmp_path / "model")
    command = ["evaluate", "--model", str(tmp_path / "model"), "--data", str(scenes)]
    assert main(command) == 0
    assert "overall" in capsys.readouterr().out
    assert main([*command, "--curves", str(tmp_path / "curves.png")]) == 2
    assert capsys.readouterr() == ("", "ppmn: figures are drawn with matplotlib: pip install 'ppmn[train]'\n")


def test_a_command_says_which_extra_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_torch(args: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("ppmn.cli.profile.run", without_torch)
    assert main(["profile"]) == 2
    expected = "ppmn: ppmn profile needs torch, which is not installed: pip install 'ppmn[torch]'\n"
    assert capsys.readouterr().err == expected
