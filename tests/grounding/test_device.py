"""Where a model runs: Apple's GPU is accepted, and left where it cannot do what a model needs."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.models import small_ppmn

from ppmn.errors import InputError
from ppmn.grounding import device
from ppmn.grounding.grounder import Grounder


def test_a_device_that_is_not_there_is_one_sentence(text: Path) -> None:
    if torch.backends.mps.is_available():
        pytest.skip("Apple's GPU is there")
    with pytest.raises(InputError, match="the device mps cannot be used"):
        Grounder(small_ppmn(text), device="mps")


def test_apples_gpu_is_used_if_it_supports_the_model(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_ppmn(text)
    monkeypatch.setattr(type(model), "to", lambda self, place: self)
    assert device.unsupported(model) is None  # it is on the CPU
    assert device.place(model, "mps") == "mps"


def test_what_apples_gpu_does_not_support_runs_on_the_cpu(
    text: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_ppmn(text)
    places: list[str] = []

    def to(self: Any, place: str) -> Any:
        places.append(place)
        return self

    def forward(*_: Any, **__: Any) -> None:
        if places[-1] == "mps":
            raise NotImplementedError("The operator 'aten::unknown' is not implemented for MPS.\nMore.")

    monkeypatch.setattr(type(model), "to", to)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "ppmn"):
        patch.setattr(type(model), "ground", forward)
        grounder = Grounder(model, device="mps")
    assert grounder.device == "cpu" and places == ["mps", "cpu"]
    (record,) = caplog.records
    assert "'aten::unknown' is not implemented for MPS.): it runs on the CPU" in record.getMessage()
    assert len(grounder.ground(Image.new("RGB", (64, 48)), "a dog")) == 1
