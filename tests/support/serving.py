"""A test server: a small untrained model on a real port."""

import contextlib
import io
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from PIL import Image, ImageDraw
from support.models import bert_folder, small_ppmn

from ppmn.grounding import encoded_image
from ppmn.grounding.encoded_image import EncodedImage
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.result import Grounding, Instance, PhrasePrediction
from ppmn.model.folder import save_model
from ppmn.serve.app import create_app

EMPTY = {"threshold": 1.0, "instances": ()}  # of a phrase whose mask is withheld
CAPTION = "In this image there are two dogs on the green grass, and a red ball under the blue sky."


def small_model(folder: Path) -> Path:
    """A small untrained model, in a model folder."""
    save_model(small_ppmn(bert_folder(folder / "bert", positions=512)), folder / "model")
    return folder / "model"


def drawn_image(width: int = 320, height: int = 240, seed: int = 0) -> Image.Image:
    """Sky, grass and balls, so that the maps vary over the image."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), "skyblue")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, height // 2, width, height), fill="forestgreen")
    for colour in ("firebrick", "gold", "black"):
        x, y, r = rng.integers(width), rng.integers(height), max(1, min(width, height) // 5)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    return image


def image_bytes(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@contextlib.contextmanager
def running(grounder: Grounder, **options: Any) -> Iterator[httpx.Client]:
    """A client of a server in a thread; `options` are those of `create_app`."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(grounder, **options), log_level="error"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
        yield client
    server.should_exit = True
    thread.join(10)


def upload(client: httpx.Client, content: bytes, name: str = "image.png") -> httpx.Response:
    return client.post("/api/images", files={"image": (name, content)})


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"{name} ")))


def set_answers(monkeypatch: pytest.MonkeyPatch, expected_iou: float) -> None:
    """The model is calibrated, and the objects of every plural are the halves of its mask."""
    predict = encoded_image.predict_phrases

    def halves(phrase: PhrasePrediction) -> tuple[Instance, ...]:
        middle = np.arange(phrase.map.shape[1]) < phrase.map.shape[1] // 2
        sides = [np.where(side, phrase.map, np.float32(0)) for side in (middle, ~middle)]
        return tuple(Instance(side, phrase.geometry, phrase.threshold) for side in sides)

    def answers(*args: Any, **options: Any) -> tuple[PhrasePrediction, ...]:
        found = predict(*args, **options)
        several = [halves(phrase) if phrase.phrase.plural else phrase.instances for phrase in found]
        return tuple(
            replace(phrase, expected_iou=expected_iou, instances=instances)
            for phrase, instances in zip(found, several, strict=True)
        )

    monkeypatch.setattr(encoded_image, "predict_phrases", answers)
    monkeypatch.setattr(Grounder, "calibrated", True)


def set_presence(monkeypatch: pytest.MonkeyPatch, presence: dict[str, float]) -> None:
    """Models say for each of these phrases how probable it is that it is in the image."""
    ground_phrases = EncodedImage.ground_phrases

    def with_presence(self: EncodedImage, *args: Any, keep_absent: bool = False, **options: Any) -> Grounding:
        grounding = ground_phrases(self, *args, keep_absent=keep_absent, **options)
        for phrase in grounding:
            value = presence.get(phrase.text)
            absent = value is not None and value < 0.5
            found = {"presence": value, "absent": absent} | ({} if keep_absent or not absent else EMPTY)
            for name, content in found.items():
                object.__setattr__(phrase, name, content)
        return grounding

    monkeypatch.setattr(EncodedImage, "ground_phrases", with_presence)
