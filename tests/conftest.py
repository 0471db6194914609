"""What the tests share: the reference material beside the project, where it is there."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("PPMN_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference numbers and photos beside the project; without it a test is skipped."""
    if not SHARED.is_dir():
        pytest.skip("the reference folder is not beside the project")
    return SHARED


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test, so that none meets the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PPMN_CACHE", str(folder))
    return folder
