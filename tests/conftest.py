"""What the tests share: the reference material where it is there, a text encoder, a few scenes, a browser."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.models import bert_folder

from ppmn.synthetic.scenes import write_scenes

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
SHARED = Path(os.environ.get("PPMN_SHARED", Path(__file__).resolve().parents[2] / "shared"))
QUIET = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")
FLAGS = [f"--{flag}" for flag in (*QUIET, "disable-component-update", "disable-sync")]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference numbers and photos beside the project; without it a test is skipped."""
    if not SHARED.is_dir():
        pytest.skip("the reference folder is not beside the project")
    return SHARED


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny text encoder."""
    return bert_folder(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-four drawn scenes with narratives."""
    root = tmp_path_factory.mktemp("scenes")
    write_scenes(root, 24, split="train", seed=5)
    return root


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless browser; where there is none its tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        pytest.skip("the browser tests did not run: there is no chromium (make browser installs it)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test, so that none meets the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PPMN_CACHE", str(folder))
    return folder
