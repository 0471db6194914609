"""The examples in the docstrings of the public API run, and every public function has one."""

import doctest
import functools
import importlib
import inspect
from pathlib import Path

import pytest

import ppmn
from ppmn.grounding import grounder

MODULES = sorted({getattr(ppmn, name).__module__ for name in ppmn.__all__ if name != "__version__"})
FUNCTIONS = [name for name in ppmn.__all__ if inspect.isfunction(getattr(ppmn, name))]
METHODS = [
    f"{kind.__name__}.{name}"
    for kind in (ppmn.Grounder, ppmn.EncodedImage)
    for name in ("encode", "encode_batch", "ground", "ground_batch")
    if hasattr(kind, name)
]
load_once = functools.cache(grounder.load)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grounder, "load", load_once)
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_public_functions_are_documented(name: str) -> None:
    function = functools.reduce(getattr, name.split("."), ppmn)
    text = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters:
        assert parameter == "self" or f"    {parameter}: " in text
    assert all(f"\n{section}:\n" in text for section in ("Args", "Returns", "Examples"))
