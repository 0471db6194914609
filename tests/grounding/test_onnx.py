"""A model folder with graphs answers the same on ONNX Runtime as on torch, without importing torch."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from support.models import WORDS, bert_folder, small_ppmn
from torch import nn

from ppmn.cli import main
from ppmn.config import PointingConfig
from ppmn.errors import InputError
from ppmn.grounding.graphs import Linear8Bit
from ppmn.grounding.grounder import Grounder, load
from ppmn.grounding.onnx import export_onnx, phrase_graph, text_graph
from ppmn.grounding.onnx_runtime import OnnxRuntime
from ppmn.grounding.runtime import RawMaps, sigmoid
from ppmn.grounding.trace import Graph, write_graph
from ppmn.model.folder import save_model
from ppmn.model.network import PPMN

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
POINTING = PointingConfig(channels=16, image_layers=1, phrase_layers=2, presence_layers=1, features=8)
PIXELS = 100  # more than the smallest map below has: missing keys are masked
NARRATION = " ".join(np.random.default_rng(5).choice(WORDS.split(), 300))


def pointing_ppmn(text: Path) -> PPMN:
    """A network that points, whose phrase layers have learned something."""
    model = small_ppmn(text, pointing=POINTING, query="phrase", pixels=PIXELS)
    generator = torch.Generator().manual_seed(3)
    assert model.head.pointing
    for parameter in model.head.pointing.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture(scope="module", params=["points", "released"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with graphs: one that points, in half precision, or the released network."""
    root = tmp_path_factory.mktemp("model")
    text = bert_folder(root / "bert")
    points = request.param == "points"
    model = pointing_ppmn(text) if points else small_ppmn(text, count_padding=True, pixels=PIXELS)
    save_model(model, root / "model", half=points)
    assert main(["export", "--model", str(root / "model")]) == 0
    return root / "model"


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[Grounder, Grounder]:
    """The same model on both runtimes."""
    return load(folder, runtime="onnx", threads=1), load(folder, runtime="torch", device="cpu")


def noise(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width)
    small = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def spans_of(caption: str, step: int) -> list[tuple[int, int]]:
    """Every `step`-th pair of words."""
    ends = [n for n, letter in enumerate(caption + " ") if letter == " "]
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [(starts[n], ends[min(n + 1, len(ends) - 1)]) for n in range(0, len(ends), step)]


def same_choices(ours: RawMaps, theirs: RawMaps) -> NDArray[np.bool_]:
    """Queries for which both chose the same pixels in every round."""
    same = np.ones(len(ours.H[0]), bool)
    for found, expected in zip(ours.indices, theirs.indices, strict=True):
        same &= (np.sort(found, 1) == np.sort(expected, 1)).all(1)
    return same


@pytest.mark.parametrize(
    ("size", "words"), [((90, 60), 1), ((40, 30), 12), ((300, 20), 55), ((33, 47), 120), ((128, 128), 300)]
)
def test_runtimes_agree(pair: tuple[Grounder, Grounder], size: tuple[int, int], words: int) -> None:
    caption = " ".join(NARRATION.split()[:words])
    spans = spans_of(caption, max(1, words // 12))
    ours, theirs = (grounder.encode(noise(*size)).maps(caption, spans) for grounder in pair)
    assert ours.sizes == theirs.sizes and len(ours.H) == len(theirs.H)
    same = same_choices(ours, theirs)
    assert same.mean() >= 0.9  # the others have a near-tie at the last pixel
    for found, expected in zip(ours.H, theirs.H, strict=True):
        assert found.shape == expected.shape
        assert np.abs(sigmoid(found) - sigmoid(expected))[same].max() < 1e-3
    assert (ours.presence is None) == (theirs.presence is None)
    if ours.presence is not None and theirs.presence is not None:
        assert np.abs(ours.presence - theirs.presence).max() < 1e-3


def test_groundings_agree_and_a_batch_equals_its_images(pair: tuple[Grounder, Grounder]) -> None:
    images, captions = [noise(90, 60), noise(64, 64), noise(90, 60)], ["a dog", "a cat on grass", "the sky"]
    ours, theirs = (grounder.ground_batch(images, captions, threshold=0.3) for grounder in pair)
    for number, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
        alone = pair[0].ground(images[number], captions[number], threshold=0.3)
        for phrase, other, single in zip(found, expected, alone, strict=True):
            assert phrase.geometry == other.geometry
            assert np.abs(phrase.map - other.map).max() < 2e-3
            np.testing.assert_array_equal(phrase.map, single.map)
            assert (phrase.presence is None) == (other.presence is None)
            if phrase.presence is not None:
                assert phrase.presence == pytest.approx(other.presence, abs=1e-3)


def test_an_encoded_batch_equals_its_images(fresh: Grounder) -> None:
    images = [noise(90, 60), noise(64, 64), noise(90, 60), noise(300, 20), noise(33, 47)]
    together = fresh.encode_batch(images)
    assert [encoded.image for encoded in together] == images
    for image, encoded in zip(images, together, strict=True):
        alone = fresh.encode(image)
        assert encoded.geometry == alone.geometry and encoded.nbytes == alone.nbytes
        found, expected = (e.raw_responses("a dog on the grass", [(0, 5)]) for e in (encoded, alone))
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_are_those_that_were_asked_for(folder: Path, threads: int, torch_threads: int) -> None:
    ours = load(folder, runtime="onnx", threads=threads).runtime
    assert isinstance(ours, OnnxRuntime)
    sessions = ours._sessions.by_name.values()
    assert {session.get_session_options().intra_op_num_threads for session in sessions} == {threads}
    assert torch.get_num_threads() == torch_threads
    load(folder, runtime="torch", device="cpu", threads=threads)
    assert torch.get_num_threads() == threads


LOAD = """
import sys
import ppmn
from PIL import Image

print("ready", flush=True)
sys.stdin.readline()
grounder = ppmn.load(sys.argv[1], runtime="onnx", threads=1)
phrase = grounder.ground(Image.linear_gradient("L").convert("RGB"), "a dog")[0]
print(phrase.map.shape, phrase.map.sum())
"""


def test_two_processes_may_start_at_once_with_an_empty_cache(folder: Path, cache: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", LOAD, str(folder)]
    both = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    assert all(process.stdout.readline() == "ready\n" for process in both)
    assert not any(cache.iterdir())
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    (said, problems), (said2, problems2) = (process.communicate() for process in both)
    assert [process.returncode for process in both] == [0, 0], problems + problems2
    assert said == said2 and said.startswith("(")
    assert not problems + problems2
    (entry,) = cache.iterdir()  # whole, and nothing beside it
    assert entry.name.startswith("sessions-")


@pytest.fixture
def torch_threads() -> Iterator[int]:
    """How many threads torch uses before and, whatever a test does, after it."""
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


@pytest.fixture(params=["onnx", "torch"])
def fresh(folder: Path, request: pytest.FixtureRequest, torch_threads: int) -> Grounder:
    """A grounder that has not run yet."""
    return load(folder, runtime=request.param, device="cpu", threads=1)


def test_several_threads_get_the_same_answers(fresh: Grounder) -> None:
    captions = ["a dog", "two red cats on the grass", "the blue sky"] * 8
    images = [noise(90, 60), noise(64, 64)]
    counts = [0] * 4

    def ground(number: int) -> NDArray[np.float32]:
        thread = number % 4

        def count() -> None:
            counts[thread] += 1

        end = fresh.runtime.check_before_steps(count)  # changes while others run
        found = fresh.ground(images[number % 2], captions[number])[0].map
        end()
        return found

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ground, range(len(captions))))
    assert all(counts)
    counts = [0] * 4
    for number, found in enumerate(together):
        expected = fresh.ground(images[number % 2], captions[number])[0].map
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not any(counts), "a check outlived its end"


def test_checks_stop_their_own_runtime_only(folder: Path, fresh: Grounder) -> None:
    def stop() -> None:
        raise TimeoutError("stopped")

    other = load(folder, runtime=fresh.runtime.name, device="cpu")  # type: ignore[arg-type]
    encoded = fresh.encode(noise(90, 60))
    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(lambda _: fresh.runtime.check_before_steps(stop), range(16)))
        with pytest.raises(TimeoutError):
            encoded.ground("a dog")
        with pytest.raises(TimeoutError):
            fresh.encode(noise(90, 60))
        assert len(other.ground(noise(90, 60), "a dog")) == 1
        list(pool.map(lambda end: end(), ends))
    assert len(encoded.ground("a dog")) == 1


def test_auto_takes_the_graphs_where_there_are_some(folder: Path, tmp_path: Path) -> None:
    assert load(folder, device="cpu").runtime.name == "onnx"
    plain = shutil.copytree(folder, tmp_path / "plain", ignore=shutil.ignore_patterns("onnx"))
    assert load(plain, device="cpu").runtime.name == "torch"
    with pytest.raises(InputError, match="has no ONNX graphs"):
        load(plain, runtime="onnx")
    with pytest.raises(InputError, match="runs on ONNX Runtime"):
        _ = load(folder, device="cpu").model


DAMAGES = {  # of onnx.json, with what the error says
    "version": (lambda said: said | {"version": 99}, "is of version 99"),
    "shape": (lambda said: said | {"config": []}, "is damaged"),
    "network": (lambda said: said | {"config": said["config"] | {"rounds": 9}}, "graphs of another network"),
    "weights": (lambda said: said | {"weights": {}}, "has no graph image"),
}


@pytest.mark.parametrize("damage", [*DAMAGES, "cut", "graph"])
def test_auto_takes_torch_where_graphs_cannot_be_used(
    folder: Path,
    tmp_path: Path,
    damage: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = shutil.copytree(folder, tmp_path / "model")
    file = model / "onnx" / ("phrases.onnx" if damage == "graph" else "onnx.json")
    change, sentence = DAMAGES.get(damage, (None, "is not JSON" if damage == "cut" else "is damaged"))
    if change is None:
        file.write_bytes(file.read_bytes()[:100])
    else:
        file.write_text(json.dumps(change(json.loads(file.read_text()))))
    assert load(model, device="cpu").runtime.name == "torch"
    (record,) = caplog.records
    assert record.levelname == "WARNING" and sentence in record.message
    assert record.message.startswith("the model runs on torch, because its graphs cannot be used: ")
    with pytest.raises(InputError, match=sentence):
        load(model, runtime="onnx")
    monkeypatch.setattr("ppmn.grounding.open_runtime.is_installed", lambda package: package != "torch")
    with pytest.raises(InputError, match=sentence):
        load(model, device="cpu")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"runtime": "tensorrt"}, "'tensorrt'; it must be auto, onnx or torch"),
        ({"precision": "int4"}, "'int4'; it must be auto or float32"),
        ({"threads": 0}, "threads is 0"),
        ({"runtime": "onnx", "device": "cuda"}, "the device is cuda"),
    ],
)
def test_bad_options_are_refused(folder: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load(folder, **options)  # type: ignore[arg-type]


def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    model = shutil.copytree(folder, tmp_path / "model")
    graph, description = model / "onnx" / "text.onnx", model / "onnx" / "onnx.json"
    content, said = graph.read_bytes(), json.loads(description.read_text())
    for damaged in (content[:100], b"not a graph", (model / "onnx" / "image.onnx").read_bytes()):
        graph.write_bytes(damaged)
        with pytest.raises(InputError, match=r"text.onnx is damaged or does not fit"):
            load(model, runtime="onnx")
    graph.write_bytes(content)
    description.write_text(json.dumps(said | {"version": 99}))
    with pytest.raises(InputError, match="version 99"):
        load(model, runtime="onnx")
    said["weights"]["text"].append("no_such_tensor")
    description.write_text(json.dumps(said))
    with pytest.raises(InputError, match="no tensor no_such_tensor"):
        load(model, runtime="onnx")


def test_a_graph_with_weights_can_be_used_alone(tmp_path: Path) -> None:
    model = small_ppmn(bert_folder(tmp_path / "bert"))
    write_graph(text_graph(model), tmp_path / "text.onnx")
    session = ort.InferenceSession(tmp_path / "text.onnx")
    encoder, ids = model.text_encoder, [[7, 8, 9, 10]]
    ends = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
    (vectors,) = session.run(None, {"ids": np.array([[ends[0], *ids[0], ends[1]]])})
    with torch.inference_mode():
        (expected,) = encoder.encode(ids)
    np.testing.assert_allclose(vectors[0, 1:-1], expected, atol=1e-5)


@pytest.mark.parametrize("changes", [{"aggregation": "mutan"}, {"aggregation": "sk", "variant": "paper"}])
def test_ablated_models_are_exported(tmp_path: Path, changes: dict[str, str]) -> None:
    model = small_ppmn(bert_folder(tmp_path / "bert"), query="phrase", **changes)
    graph = phrase_graph(model)
    write_graph(graph, tmp_path / "phrases.onnx")
    names, pixels = graph.input_names[2:], torch.randn(3, 1, 9, 14, 32)
    words, pool = torch.randn(11, 32), torch.eye(11)
    with torch.inference_mode():
        maps, *_ = graph.module(words, pool, tuple(pixels))
    inputs = {"words": words.numpy(), "pool": pool.numpy()}
    inputs |= {name: array.numpy() for name, array in zip(names, pixels, strict=True)}
    found = ort.InferenceSession(tmp_path / "phrases.onnx").run(None, inputs)[0]
    difference = np.abs(sigmoid(found) - maps.sigmoid().numpy()).max((0, 2, 3))
    assert (difference < 1e-3).mean() > 0.8  # the others have a near-tie at the last pixel


def test_maxpool_selection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="maxpool"):
        export_onnx(small_ppmn(bert_folder(tmp_path), selection="maxpool"), tmp_path / "onnx")


def test_linear_layers_in_8_bits(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(6)
    linear = nn.Linear(48, 40)
    x = torch.randn(1, 30, 48, generator=generator)
    layer = Linear8Bit(linear)
    rows = torch.export.Dim("rows", min=1)
    names = write_graph(Graph(layer, (x,), {"x": {1: rows}}, ["x"], ["y"]), tmp_path / "linear.onnx")
    assert sorted(names) == ["bias", "scale_8bit", "weight_8bit"]
    (found,) = ort.InferenceSession(tmp_path / "linear.onnx").run(None, {"x": x[:, :17].numpy()})
    with torch.no_grad():
        ours, full = layer(x[:, :17]), linear(x[:, :17])
    np.testing.assert_allclose(found, ours, atol=1e-5)
    assert (ours - full).norm() < 0.03 * full.norm()


def agreement(ours: Grounder, theirs: Grounder, images: int) -> tuple[int, int]:
    """Compare on random images and captions; rows whose pixels were chosen alike, and all rows."""
    rng = np.random.default_rng(1)
    clear, total = 0, 0
    for number in range(images):
        image = noise(*rng.integers(32, 900, 2).tolist())
        caption = " ".join(rng.choice(WORDS.split(), 1 + 299 * number // max(1, images - 1)))
        spans = spans_of(caption, max(1, number))
        found, expected = (grounder.encode(image).maps(caption, spans) for grounder in (ours, theirs))
        same = same_choices(found, expected)
        difference = np.abs(found.probabilities() - expected.probabilities()).max((1, 2))
        assert (difference[same] < 1e-3).all()
        masks, truths = found.probabilities() > ours.threshold, expected.probabilities() > ours.threshold
        common, either = (masks & truths).sum((1, 2)), (masks | truths).sum((1, 2))
        assert (common[~same] >= 0.99 * either[~same]).all()
        clear, total = clear + int(same.sum()), total + len(same)
    return clear, total


@pytest.fixture
def included() -> tuple[Grounder, Grounder]:
    """The included model on both runtimes, in single precision."""
    return tuple(load(runtime=name, precision="float32", device="cpu") for name in ("onnx", "torch"))  # type: ignore[return-value, arg-type]


def test_the_graphs_of_the_included_model_are_up_to_date(included: tuple[Grounder, Grounder]) -> None:
    agreement(*included, images=2)


def test_the_included_model_in_8_bits_is_near(included: tuple[Grounder, Grounder]) -> None:
    ours = load(runtime="onnx")
    assert ours.runtime.precision == "8 bits" and included[0].runtime.precision == "float32"
    image, caption = noise(120, 90), "the red dog on the grass"
    found, wanted = (g.encode(image).raw_responses(caption, [(4, 11)]) for g in (ours, included[0]))
    assert 0 < np.abs(found - wanted).mean() < 0.03


@pytest.mark.soak
def test_the_included_model_agrees_on_twenty_images(included: tuple[Grounder, Grounder]) -> None:
    clear, total = agreement(*included, images=20)
    assert clear > 0.98 * total
