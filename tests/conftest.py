"""What the tests share: the reference material where it is there, a text encoder, a few scenes."""

import os
from pathlib import Path

import pytest
from models import bert_folder

from ppmn.data.scenes import write_scenes

SHARED = Path(os.environ.get("PPMN_SHARED", Path(__file__).resolve().parents[2] / "shared"))


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
    write_scenes(root, 24, "train", 5)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test, so that none meets the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PPMN_CACHE", str(folder))
    return folder
