"""The package as a person gets it: a wheel, a fresh environment, one command."""

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from PIL import Image

import ppmn

PROJECT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_wheel_works_in_a_fresh_environment(tmp_path: Path) -> None:
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        PROJECT,
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob("ppmn-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    constraints = PROJECT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, "torch", cwd=tmp_path)
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, wheel, cwd=tmp_path)
    assert (
        run(tmp_path / "env" / "bin" / "ppmn", "--version", cwd=tmp_path).strip()
        == f"ppmn {ppmn.__version__}"
    )
    Image.new("RGB", (64, 48), "skyblue").save(tmp_path / "sky.png")
    run(tmp_path / "env" / "bin" / "ppmn", "ground", "sky.png", "the blue sky", "-o", "out", cwd=tmp_path)
    with Image.open(tmp_path / "out" / "overlay.png") as overlay:
        assert overlay.size == (64, 48)
    where = Path(run(python, "-c", "import ppmn; print(ppmn.__file__)", cwd=tmp_path).strip())
    assert where.is_relative_to(tmp_path) and (where.parent / "py.typed").is_file()


def test_importing_the_package_runs_nothing_heavy() -> None:
    code = "import sys, ppmn; print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    assert run(sys.executable, "-c", code, cwd=PROJECT).strip() == "[]"


def test_versions_agree() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["version"] == ppmn.__version__
    assert f"version: {ppmn.__version__}" in (PROJECT / "CITATION.cff").read_text()
    changelog = (PROJECT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog or f"## [{ppmn.__version__}]" in changelog
