"""The ONNX graphs equal torch, also for sizes other than those they were traced with."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.models import bert_folder, small_ppmn

from ppmn.cli import main
from ppmn.errors import InputError
from ppmn.grounding.grounder import Grounder, load
from ppmn.grounding.onnx import export_onnx, export_phrases
from ppmn.model.folder import save_model
from ppmn.model.lcpa import blur
from ppmn.model.network import PixelFeatures

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
PIXELS = 100  # more than the smallest map below has: missing keys are masked


@pytest.fixture(scope="module", params=["small", "compact"])
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Grounder, Path]:
    root, name = tmp_path_factory.mktemp("export"), request.param
    if name == "small":
        save_model(small_ppmn(bert_folder(root / "bert"), pixels=PIXELS), root / "model")
        name = str(root / "model")
    assert main(["export", "-o", str(root / "onnx"), "--model", name]) == 0
    return load(name), root / "onnx"


@pytest.mark.parametrize(("width", "height", "words"), [(90, 60, 1), (40, 30, 12), (300, 20, 40)])
def test_onnx_equals_torch(exported: tuple[Grounder, Path], width: int, height: int, words: int) -> None:
    grounder, folder = exported
    model = grounder.model
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    prepared = model.preprocess(Image.fromarray(noise))
    vectors = torch.randn(words, model.text_encoder.channels, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = model.head.encode(model.image_encoder([prepared]))
        maps = model.head.ground(features, vectors, [words])

    h, w = prepared.shape[1:]
    padded = np.full((3, *model.image_encoder.padded_size(h, w)), 99, np.float32)  # padding may hold anything
    padded[:, :h, :w] = prepared
    image, phrases = (ort.InferenceSession(folder / name) for name in ("image.onnx", "phrases.onnx"))
    pixels = image.run(None, {"image": padded, "size": np.array([h, w])})
    named = {f"pixels_{index}": p for index, p in enumerate(pixels)}
    H, indices = phrases.run(None, {"vectors": vectors.numpy(), **named})

    certain = clear_cuts(maps.H[:-1], PIXELS)
    assert certain.any() and indices.shape == (2, words, PIXELS)
    ours, theirs = torch.stack(maps.H).sigmoid()[:, certain], torch.from_numpy(H).sigmoid()[:, certain]
    assert (ours - theirs).abs().max() < 1e-3


def clear_cuts(H: list[torch.Tensor], S: int) -> torch.Tensor:
    """Rows whose last selected and first rejected pixel differ by more than rounding in every round."""
    certain = torch.ones(len(H[0]), dtype=torch.bool)
    for h in H:
        scores = blur(h).flatten(1).sort(1, descending=True).values
        if scores.shape[1] > S:
            certain &= scores[:, S - 1] - scores[:, S] > 1e-4
    return certain


@pytest.mark.parametrize("changes", [{"aggregation": "mutan"}, {"aggregation": "sk", "variant": "paper"}])
def test_ablated_models_are_exported(tmp_path: Path, changes: dict[str, str]) -> None:
    model = small_ppmn(bert_folder(tmp_path / "bert"), **changes)
    export_phrases(model, tuple(torch.randn(1, 32, 24, 28) for _ in range(3)), tmp_path / "phrases.onnx")
    pixels, vectors = torch.randn(3, 1, 32, 9, 14), torch.randn(11, 32)
    with torch.inference_mode():
        maps = model.head.ground(PixelFeatures(tuple(pixels)), vectors, [11])
    named = {f"pixels_{index}": p.numpy() for index, p in enumerate(pixels)}
    run = ort.InferenceSession(tmp_path / "phrases.onnx").run
    H = torch.from_numpy(run(None, {"vectors": vectors.numpy(), **named})[0])
    certain = clear_cuts(maps.H[:-1], model.config.pixels)
    assert certain.any()
    assert (torch.stack(maps.H).sigmoid() - H.sigmoid())[:, certain].abs().max() < 1e-3


def test_description(exported: tuple[Grounder, Path]) -> None:
    grounder, folder = exported
    description = json.loads((folder / "onnx.json").read_text())
    small = grounder.model.config.image.kind == "resnet"
    assert (description["multiple"], description["stride"]) == ((32, 8) if small else (28, 7))
    assert description["config"]["pixels"] == PIXELS


def test_maxpool_selection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="maxpool"):
        export_onnx(small_ppmn(bert_folder(tmp_path), selection="maxpool"), tmp_path / "onnx")
