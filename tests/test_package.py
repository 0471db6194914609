"""The package as a user installs it: a wheel in a fresh environment."""

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from PIL import Image

import ppmn

PROJECT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    finished = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def test_wheel_works_in_a_fresh_environment(tmp_path: Path) -> None:
    build = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    run(sys.executable, *build, "-w", tmp_path, PROJECT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("ppmn-*.whl")
    assert wheel.stat().st_size < 100e6
    venv.create(tmp_path / "env", with_pip=True)
    scripts = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    python, command = (scripts / name for name in ("python", "ppmn"))
    constraints = PROJECT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, wheel, cwd=tmp_path)
    assert sum(file.stat().st_size for file in (tmp_path / "env").rglob("*")) < 500e6
    assert run(command, "--version", cwd=tmp_path).strip() == f"ppmn {ppmn.__version__}"
    Image.new("RGB", (64, 48), "skyblue").save(tmp_path / "sky.png")
    run(command, "ground", "sky.png", "the blue sky", "-o", "out", cwd=tmp_path)
    with Image.open(tmp_path / "out" / "overlay.png") as overlay:
        assert overlay.size == (64, 48)
    absent = "import importlib.util as u; print([n for n in ('torch', 'transformers') if u.find_spec(n)])"
    assert run(python, "-c", absent, cwd=tmp_path).strip() == "[]"
    train = subprocess.run([command, "train", "-h"], cwd=tmp_path, capture_output=True, check=False)
    assert train.returncode == 0
    imported = Path(run(python, "-c", "import ppmn; print(ppmn.__file__)", cwd=tmp_path).strip())
    assert imported.is_relative_to(tmp_path) and (imported.parent / "py.typed").is_file()


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, ppmn; print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    assert run(sys.executable, "-c", code, cwd=PROJECT).strip() == "[]"


def test_versions_agree() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["version"] == ppmn.__version__
    assert f"version: {ppmn.__version__}" in (PROJECT / "CITATION.cff").read_text()
    headings = re.findall(r"^## \[(.+?)\]", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in ("Unreleased", ppmn.__version__)
