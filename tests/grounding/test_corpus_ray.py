"""Corpora on Ray: two nodes on one machine, lost workers, a lost node and a killed driver."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.corpus import bomb, image_bytes, random_model, shard_rows, single_process_rows, write_images
from support.training import arguments

from ppmn.cli import main
from ppmn.errors import InputError
from ppmn.grounding.corpus_pool import PoolOptions
from ppmn.grounding.corpus_run import corpus

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Ray's clusters on one machine need Linux")
ROOT = Path(__file__).resolve().parents[2]
IMAGES = 200
NODE = {"num_cpus": 1, "object_store_memory": 200_000_000}
TWO = PoolOptions(actors=2, device="cpu")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One node with one CPU, to which tests add another."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {**NODE, "include_dashboard": False, "_system_config": {"health_check_period_ms": 1000}}
        started = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=started.address, log_to_driver=False)
        yield started
        ray.shutdown()
        started.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), IMAGES)


@pytest.fixture(scope="module")
def expected(images: Path, model: str) -> list[dict[str, Any]]:
    return single_process_rows(model, images)


def shards(out: Path) -> dict[str, int]:
    """The time at which each shard was written."""
    return {file.name: file.stat().st_mtime_ns for file in (out / "shards").glob("*.parquet")}


def when_shards(out: Path, count: int, act: Callable[[], None]) -> threading.Thread:
    """Do something as soon as there are so many shards."""

    def wait() -> None:
        while len(shards(out)) < count:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def workers(node: Any) -> list[int]:
    """The processes of a node that ground images."""
    raylet = node.all_processes["raylet"][0].process.pid
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == raylet and b"ray::MapWorker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def test_figures_of_an_evaluation_are_the_same(
    cluster: Any, scenes: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for name, more in (("alone", []), ("shared", ["--engine", "ray", "--actors", "2"])):
        files = ["-o", str(tmp_path / name), "--save-predictions", str(tmp_path / f"{name}.jsonl")]
        assert main(["evaluate", "--model", model, "--data", str(scenes), *files, *more]) == 0
        report = json.loads((tmp_path / name).read_text())
        predictions = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        outputs.append((capsys.readouterr().out, report, sorted(predictions)))
    assert outputs[0] == outputs[1] and len(outputs[0][2]) > 24


def test_a_cache_is_filled_for_training(
    cluster: Any, scenes: Path, text: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    frozen = ("--set=lr_image=0", "--set=small_epochs=0", "--init", model, "--cache", str(cache))
    command = arguments(scenes, text, tmp_path / "run", "--epochs", "1", *frozen)
    assert main([*command, "--engine", "ray", "--actors", "1"]) == 0
    assert "nothing was trained" in capsys.readouterr().out
    entries = {file: file.stat().st_mtime_ns for file in cache.rglob("*.safetensors")}
    assert {file.relative_to(cache).parts[0] for file in entries} == {"image", "text"}
    assert not (tmp_path / "run").exists()
    assert main(command) == 0
    assert entries == {file: file.stat().st_mtime_ns for file in cache.rglob("*.safetensors")}


def test_a_folder_that_cannot_be_written_any_more(
    cluster: Any, images: Path, model: str, tmp_path: Path
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"

    def take_away() -> None:
        (out / "shards").rename(kept)
        (out / "shards").write_text("")

    after = when_shards(out, 3, take_away)
    with pytest.raises(InputError, match=r"cannot be written .*; the shards that are there are complete"):
        corpus(images, out, model=model, shard_size=6, pool=TWO)
    after.join(10)
    found, expected = shard_rows(tmp_path, "kept"), single_process_rows(model, images)
    assert found and all(row in expected for row in found)
    assert not (out / "_SUCCESS").exists()


def test_a_killed_driver_starts_again_where_it_was(
    cluster: Any, images: Path, model: str, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    out, coco = tmp_path / "out", tmp_path / "coco.json"
    where = ["--engine", "ray", "--address", cluster.address, "--actors", "1", "--shard-size", "6"]
    # relative to the driver's folder, not to the one in which the cluster was started
    names = ["-o", "out", "--model", os.path.relpath(model, tmp_path), "--json", "coco.json"]
    command = [sys.executable, "-m", "ppmn.cli", "ground", str(images), *names, *where, "--device", "cpu"]
    driver = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    when_shards(out, 5, driver.kill).join(300)
    assert driver.wait() == -signal.SIGKILL
    before = shards(out)
    assert len(before) >= 5 and not (out / "_SUCCESS").exists()
    assert len(pd.read_parquet(out / "shards")) > 0  # complete shards only
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shard_rows(out) == expected
    after = shards(out)
    assert {name: after[name] for name in before} == before  # not written again
    assert "images were finished before" in again.stdout
    assert f"{len(expected)} phrases of {IMAGES} images; errors.parquet: 0 images" in again.stdout
    assert len(json.loads(coco.read_text())["annotations"]) == len(expected)


def ground_with_losses(
    cluster: Any, images: Path, model: str, out: Path, shard_size: int, after: tuple[int, int]
) -> None:
    """Ground on two nodes; kill one's workers and then the node after so many shards."""
    second = cluster.add_node(**NODE)
    killed: list[int] = []

    def kill_workers() -> None:
        for process in workers(second):
            os.kill(process, signal.SIGKILL)
            killed.append(process)

    first = when_shards(out, after[0], kill_workers)
    then = when_shards(out, after[1], lambda: cluster.remove_node(second, allow_graceful=False))
    done = corpus(images, out, model=model, shard_size=shard_size, pool=TWO)
    first.join(10)
    then.join(30)
    assert killed and not cluster.worker_nodes
    expected = single_process_rows(model, images)
    assert shard_rows(out) == expected
    count = len(list(images.rglob("*.png")))
    assert (done.images, done.errors) == (count, 0)
    manifest = json.loads((out / "_SUCCESS").read_text())
    assert (manifest["images"], manifest["phrases"], manifest["errors"]) == (count, len(expected), 0)


def test_lost_workers_and_a_lost_node_change_nothing(
    cluster: Any, images: Path, model: str, tmp_path: Path
) -> None:
    ground_with_losses(cluster, images, model, tmp_path / "out", 6, (5, 12))


@pytest.mark.soak
def test_the_included_model_on_a_corpus(cluster: Any, tmp_path: Path) -> None:
    ground_with_losses(cluster, write_images(tmp_path / "images", 12), "compact", tmp_path / "out", 1, (2, 5))


@pytest.mark.soak
def test_a_large_corpus_with_damaged_images(cluster: Any, model: str, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 5000)
    damages = (image_bytes(1)[:200], b"", b"GIF89a and no more", bomb())
    damaged = sorted(folder.rglob("*.png"))[::100]
    for number, file in enumerate(damaged):
        file.write_bytes(damages[number % 4])
    done = corpus(folder, tmp_path / "out", model=model, pool=TWO)
    errors = pd.read_parquet(tmp_path / "out" / "errors.parquet")
    assert set(errors["image"]) == {file.as_posix() for file in damaged}
    assert errors["error"].str.len().min() > 20
    assert (done.images, done.errors) == (4950, 50)
    for file in damaged:
        file.unlink()
    assert shard_rows(tmp_path / "out") == single_process_rows(model, folder)
