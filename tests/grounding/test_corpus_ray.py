"""Corpora on Ray: two nodes on one machine, lost workers, a lost node and a killed driver."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.corpus import bomb, image_bytes, random_model, shard_rows, single_process_rows, write_images
from support.training import arguments

from ppmn.cli import main
from ppmn.data.panoptic import DataSpec
from ppmn.evaluation.evaluate import evaluate, model_answers, open_narratives_of
from ppmn.evaluation.evaluate_corpus import evaluate_on_ray
from ppmn.grounding.corpus_pool import PoolOptions
from ppmn.grounding.corpus_run import corpus
from ppmn.grounding.grounder import load

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Ray's clusters on one machine need Linux")
ROOT = Path(__file__).resolve().parents[2]
IMAGES = 200
QUICK = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500}
TWO = PoolOptions(actors=2, device="cpu")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with one CPU each; the driver is on the first."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
        patched.setenv("OMP_NUM_THREADS", "1")
        node = {"num_cpus": 1, "object_store_memory": 200_000_000}
        head = {**node, "include_dashboard": False, "_system_config": QUICK}
        started = Cluster(initialize_head=True, head_node_args=head)
        started.add_node(**node)
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
    """The processes of a node that run actors."""
    raylet = node.all_processes["raylet"][0].process.pid
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if folder.name.isdigit() and parent == raylet and b"ray::" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def test_figures_of_an_evaluation_are_the_same(cluster: Any, scenes: Path, model: str) -> None:
    specs = [DataSpec(scenes)]
    sources = open_narratives_of(specs)
    threads = torch.get_num_threads()
    alone = evaluate(model_answers(load(model, device="cpu")), sources, keep_predictions=True)
    pool = PoolOptions(actors=2, threads=threads, device="cpu")
    shared = evaluate_on_ray(model, specs, sources, pool, keep_predictions=True)
    assert shared.metric.compute() == alone.metric.compute()
    assert shared.predictions == alone.predictions


def test_a_cache_is_filled_for_training(
    cluster: Any, scenes: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, cache = tmp_path / "trained", tmp_path / "cache"
    assert main(arguments(scenes, text, trained, "--epochs", "1", "--set", "validation_fraction=0")) == 0
    fields = ("--set=lr_image=0", "--init", str(trained), "--cache", str(cache))
    command = arguments(scenes, text, tmp_path / "run", "--epochs", "1", *fields)
    assert main([*command, "--engine", "ray", "--actors", "2"]) == 0
    assert "nothing was trained" in capsys.readouterr().out
    entries = {file: file.stat().st_mtime_ns for file in cache.rglob("*.safetensors")}
    assert entries and not (tmp_path / "run").exists()
    assert main(command) == 0
    assert entries == {file: file.stat().st_mtime_ns for file in cache.rglob("*.safetensors")}


def test_lost_workers_and_a_lost_node_change_nothing(
    cluster: Any, images: Path, model: str, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (second,) = cluster.worker_nodes
    killed: list[int] = []

    def kill_workers() -> None:
        for process in workers(second):
            os.kill(process, signal.SIGKILL)
            killed.append(process)

    first = when_shards(out, 5, kill_workers)
    then = when_shards(out, 12, lambda: cluster.remove_node(second, allow_graceful=False))
    done = corpus(images, out, model=model, chunk_size=6, pool=TWO)
    first.join(10)
    then.join(30)
    assert killed and not cluster.worker_nodes
    assert shard_rows(out) == expected
    assert (done.images, done.errors) == (IMAGES, 0)


def test_a_killed_driver_starts_again_where_it_was(
    images: Path, model: str, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    script = (
        "from ppmn.grounding.corpus_pool import PoolOptions\n"
        "from ppmn.grounding.corpus_run import corpus\n"
        "import sys\n"
        "pool = PoolOptions(actors=1, device='cpu')\n"
        "print(corpus(*sys.argv[1:3], model=sys.argv[3], chunk_size=6, pool=pool).grounded)\n"
    )
    command = [sys.executable, "-c", script, str(images), str(out), model]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    driver = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    when_shards(out, 5, driver.kill).join(300)
    driver.wait()
    time.sleep(2)  # its actors end with it
    before = shards(out)
    assert driver.returncode == -signal.SIGKILL and len(before) >= 5
    assert not (out / "_SUCCESS").exists()
    assert len(pd.read_parquet(out / "shards")) > 0  # complete shards only
    again = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert shard_rows(out) == expected
    after = shards(out)
    assert {name: after[name] for name in before} == before  # not written again
    assert int(again.stdout.splitlines()[-1]) < IMAGES


@pytest.mark.soak
def test_a_large_corpus_with_damaged_images(model: str, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 5000)
    damages = (image_bytes(1)[:200], b"", b"GIF89a and no more", bomb())
    damaged = sorted(folder.rglob("*.png"))[::100]
    for number, file in enumerate(damaged):
        file.write_bytes(damages[number % 4])
    done = corpus(folder, tmp_path / "out", model=model, pool=TWO)
    errors = pd.read_parquet(tmp_path / "out" / "errors.parquet")
    assert set(errors["image"]) == {str(file) for file in damaged}
    assert errors["error"].str.len().min() > 20
    assert (done.images, done.errors) == (4950, 50)
    for file in damaged:
        file.unlink()
    assert shard_rows(tmp_path / "out") == single_process_rows(model, folder)


@pytest.mark.soak
def test_the_included_model_on_a_corpus(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 12)
    corpus(folder, tmp_path / "out", chunk_size=3, pool=TWO)
    assert shard_rows(tmp_path / "out") == single_process_rows("compact", folder)
