"""Sessions are kept in the cache; a cache that is damaged or cannot be written costs a sentence and time."""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ppmn.errors import InputError
from ppmn.grounding import sessions
from ppmn.grounding.sessions import GraphFile, open_sessions
from ppmn.grounding.weight_files import WeightFile, quantize, read_weights

onnx = pytest.importorskip("onnx")
ROWS = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float16)


class Model:
    """A graph of one product with a weight of a safetensors file."""

    def __init__(self, folder: Path) -> None:
        helper, kind = onnx.helper, onnx.TensorProto.FLOAT
        save_file({"weight": WEIGHT}, folder / "model.safetensors")
        weight = onnx.numpy_helper.from_array(WEIGHT.astype(np.float32), "weight")
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="model.safetensors")
        x, y = (helper.make_tensor_value_info(name, kind, ["n", None]) for name in "xy")
        node = helper.make_node("MatMul", ["x", "weight"], ["y"])
        graph = helper.make_graph([node], "product", [x], [y], [weight])
        self.file = folder / "product.onnx"
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        onnx.save(made, self.file)
        self.weights = [WeightFile(folder / "model.safetensors", "")]

    def run(self, digests: Sequence[str] = ("1",)) -> Any:
        found = open_sessions({"product": GraphFile(self.file, ["weight"])}, self.weights, digests, 1)
        return found.by_name["product"].run(None, {"x": ROWS})[0]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


def entries(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


def check(found: Any) -> None:
    np.testing.assert_allclose(found, ROWS @ WEIGHT.astype(np.float32), rtol=1e-4, atol=1e-4)


def test_the_second_load_reads_the_cache(model: Model, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(model.run())
    (entry,) = entries(cache)
    monkeypatch.setattr(sessions, "read_weights", lambda *_: pytest.fail("the weights were read again"))
    check(model.run())
    monkeypatch.undo()
    monkeypatch.setenv("PPMN_CACHE", str(cache))
    check(model.run(digests=["2"]))  # of other weights
    assert len(entries(cache)) == 2 and entry in entries(cache)


@pytest.mark.parametrize("name", ["product.onnx", "product.weights", "sha256.json"])
@pytest.mark.parametrize("damage", ["changed", "cut", "foreign", "absent"])
def test_a_damaged_entry_is_made_again(
    model: Model, cache: Path, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    check(model.run())
    (entry,) = entries(cache)
    content = (entry / name).read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    (entry / name).write_bytes({"changed": changed, "cut": content[:middle]}.get(damage, b"{}"))
    if damage == "absent":
        (entry / name).unlink()
    check(model.run())
    (record,) = caplog.records
    assert "is damaged and is made again" in record.message
    caplog.clear()
    check(model.run())
    assert not caplog.records


def test_without_a_cache_it_works_with_a_warning(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PPMN_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        check(model.run())
    (record,) = caplog.records
    assert "cannot be written" in record.message and "PPMN_CACHE" in record.message


def test_several_may_start_at_once(model: Model, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.run(), range(4)):
            check(found)
    assert len(entries(cache)) == 1


def test_old_entries_are_removed(model: Model, cache: Path) -> None:
    for number in range(7):
        check(model.run(digests=[str(number)]))
        for age, entry in enumerate(sorted(entries(cache), key=lambda e: e.stat().st_mtime)):
            os.utime(entry, (number * 100 + age, number * 100 + age))
    assert len(entries(cache)) <= 5


def test_onnxruntime_that_is_too_old_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.16.3")
    with pytest.raises(InputError, match=r"onnxruntime 1.16.3 is too old; 1.20 is needed"):
        model.run()


def test_a_damaged_graph_is_refused(model: Model) -> None:
    model.file.write_bytes(b"not a graph")
    with pytest.raises(InputError, match=r"product.onnx is damaged or does not fit the model"):
        model.run()


def test_tensors_are_read_as_graphs_expect_them(tmp_path: Path) -> None:
    table = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    scale = np.array([[0.5], [1.0], [2.0]], np.float32)
    linear = np.random.default_rng(2).standard_normal((5, 7)).astype(np.float32)
    stored = {"table": table, "table.scale": scale, "layer.weight": linear}
    save_file(stored, tmp_path / "model.safetensors")
    files = [WeightFile(tmp_path / "model.safetensors", "")]
    np.testing.assert_array_equal(read_weights(files, ["table"])["table"], table * scale)
    assert read_weights(files, ["table", "table.scale"])["table"].dtype == np.int8
    found = read_weights(files, ["layer.weight_8bit", "layer.scale_8bit"])
    np.testing.assert_array_equal(found["layer.weight_8bit"], quantize(linear)[0])
    full = found["layer.weight_8bit"] * found["layer.scale_8bit"]
    assert np.abs(full.T - linear).max() <= np.abs(linear).max() / 63
    with pytest.raises(InputError, match=r"no tensor layer.bias"):
        read_weights(files, ["layer.bias"])
