"""Training runs from end to end: what they write, how they continue, and what is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file
from support.models import small_config
from support.precision import uses_bfloat16
from support.training import SMALL, arguments, items, small_run, tiny

from ppmn.cli import main
from ppmn.data.panoptic import DataSpec
from ppmn.errors import InputError
from ppmn.model import folder as weights
from ppmn.presets import PRESETS, override
from ppmn.training.dataset import TrainingSet, epoch_batches, read_batches
from ppmn.training.feature_cache import FeatureCaches
from ppmn.training.initial import initial_model
from ppmn.training.run_folder import RunFolder
from ppmn.training.sources import open_training_sources
from ppmn.training.trainer import Trainer


def test_run_writes_a_network_a_log_and_sheets(scenes: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(arguments(scenes, text, out, "--epochs", "2")) == 0
    assert weights.load_model(out).config.rounds == 1
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["total"] for line in steps] == list(range(1, len(steps) + 1))
    assert [set(line["validation"]) >= {"overall", "things"} for line in lines if "validation" in line] == [
        True
    ] * 2
    assert (out / "epoch-001.png").stat().st_size > 1000
    assert json.loads((out / "train.json").read_text())["config"]["model"]["image"]["width"] == 8
    assert len(list((out / "checkpoints").iterdir())) == 2
    assert list((out / "tensorboard").iterdir())


def run_with_kills(command: list[str], out: Path, kills: int, environment: dict[str, str]) -> None:
    """Run a command to its end, killing it `kills` times after its log has grown."""
    log = out / "log.jsonl"
    for turn in range(kills + 1):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if turn < kills:
            size = log.stat().st_size if log.is_file() else 0
            while process.poll() is None and (not log.is_file() or log.stat().st_size <= size + 60 * turn):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
        else:
            _, errors = process.communicate()
            assert process.returncode == 0, errors.decode()[-2000:]


def assert_killed_equals_unbroken(scenes: Path, text: Path, folder: Path, kills: int, epochs: int) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pointing = '{"channels": 16, "image_layers": 1, "phrase_layers": 1, "features": 8}'
    changes = ("ema_decay=0.9", f"model.pointing={pointing}", "augment.mirror=true", "lr_text=1e-4")
    extra = ("--epochs", str(epochs), *(f"--set={change}" for change in changes))
    for name, times in (("unbroken", 0), ("killed", kills)):
        command = [sys.executable, "-m", "ppmn.cli", *arguments(scenes, text, folder / name, *extra)]
        run_with_kills(command, folder / name, times, environment)
    ours, theirs = (load_file(folder / name / "model.safetensors") for name in ("killed", "unbroken"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    logs = [(folder / name / "log.jsonl").read_text().splitlines() for name in ("killed", "unbroken")]
    losses = [[json.loads(line).get("loss") for line in log] for log in logs]
    assert losses[0] == losses[1]


def test_killed_run_ends_with_the_same_bits(scenes: Path, text: Path, tmp_path: Path) -> None:
    assert_killed_equals_unbroken(scenes, text, tmp_path, kills=3, epochs=3)


@pytest.mark.soak
def test_run_killed_twenty_times_ends_with_the_same_bits(scenes: Path, text: Path, tmp_path: Path) -> None:
    assert_killed_equals_unbroken(scenes, text, tmp_path, kills=20, epochs=12)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends Ctrl-C to a whole console")
def test_interrupted_run_saves_its_last_step_and_ends_with_the_same_bits(
    scenes: Path, text: Path, tmp_path: Path
) -> None:
    extra = ("--epochs", "2", "--set", "checkpoint_every=1000", "--set", "workers=1")
    unbroken, out = tmp_path / "unbroken", tmp_path / "run"
    torch.set_num_threads(1)  # other numbers give other bits
    assert main(arguments(scenes, text, unbroken, *extra)) == 0
    command = [sys.executable, "-m", "ppmn.cli", *arguments(scenes, text, out, *extra)]
    log = out / "log.jsonl"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    while process.poll() is None and not (log.is_file() and log.stat().st_size):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, errors = process.communicate()
    assert process.returncode == 130, errors.decode()[-2000:]
    steps = len(log.read_text().splitlines())
    (checkpoint,) = (out / "checkpoints").iterdir()
    assert checkpoint.stem == f"{steps:08}"
    said = f"ppmn: interrupted: step {steps} is saved; the same command continues"
    assert errors.decode().splitlines() == [said]
    assert main(arguments(scenes, text, out, *extra)) == 0
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, unbroken))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.soak
def test_memory_does_not_grow(scenes: Path, text: Path, tmp_path: Path) -> None:
    import resource

    run = small_run(tiny(text), scenes, tmp_path)
    batch, peaks = items(run), []
    for step in range(500):
        run.step(batch, 500)
        if step in (99, 499):
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    assert peaks[1] - peaks[0] < 20


def train_in_float64(
    rank: int, world: int, scenes: Path, text: Path, folder: Path, changes: dict[str, object]
) -> None:
    """Twenty steps in float64; the main process saves its weights."""
    if world > 1:
        meet = f"file://{folder / f'meet-{len(changes)}'}"
        torch.distributed.init_process_group("gloo", meet, rank=rank, world_size=world)
    torch.set_num_threads(1)
    config = tiny(text, lr_text=1e-4, **changes)
    torch.manual_seed(0)
    model = initial_model(config, None)
    data = TrainingSet(open_training_sources([DataSpec(scenes)]), config, model.double(), FeatureCaches())
    run = Trainer(config, model, data, RunFolder(folder))
    for step in range(20):
        epoch, place = divmod(step, len(epoch_batches(data, 0, run.batch_size)))
        mine = epoch_batches(data, epoch, run.batch_size)[place][rank::world]
        run.step(run.readable(next(read_batches(data, epoch, [mine]))), 20)
    if rank == 0:
        torch.save(model.state_dict(), folder / f"{world}-{len(changes)}.pt")


def test_processes_and_accumulation_equal_a_single_process(scenes: Path, text: Path, tmp_path: Path) -> None:
    mp.spawn(train_in_float64, (2, scenes, text, tmp_path, {}), 2)
    train_in_float64(0, 1, scenes, text, tmp_path, {})
    train_in_float64(0, 1, scenes, text, tmp_path, {"accumulate": 3})
    unused = replace(small_config(text), pixels=0)
    mp.spawn(
        train_in_float64, (2, scenes, text, tmp_path, {"model": unused}), 2
    )  # parameters without a gradient do not block it
    alone, together, parts = (
        torch.load(tmp_path / f"{n}.pt", weights_only=True) for n in ("1-0", "2-0", "1-1")
    )
    for name, value in alone.items():
        assert torch.allclose(together[name], value, rtol=0, atol=1e-8), name
        assert torch.allclose(parts[name], value, rtol=0, atol=1e-8), name


def test_only_the_paper_preset_trains_the_text_encoder(scenes: Path, text: Path, tmp_path: Path) -> None:
    for preset, moves in (("paper", True), ("ppmn-released", False)):
        config = PRESETS[preset]()
        model = replace(
            small_config(text), variant=config.model.variant, count_padding=config.model.count_padding
        )
        run = small_run(
            replace(config, model=model, lr_image=1e-4, workers=0, batch_size=4), scenes, tmp_path / preset
        )
        before = {n: p.clone() for n, p in run.model.text_encoder.named_parameters()}
        run.step(items(run), 10)
        moved = any(not torch.equal(p, before[n]) for n, p in run.model.text_encoder.named_parameters())
        assert moved == moves
        assert run.model.text_encoder.training  # dropout is on in both


def test_rates_are_halved_from_epoch_ten(scenes: Path, text: Path, tmp_path: Path) -> None:
    config = replace(PRESETS["paper"](), model=small_config(text), lr_image=1e-4, workers=0)
    run = small_run(config, scenes, tmp_path)
    rates = []
    for epoch in range(14):
        run.progress.epoch = epoch
        run.set_rates(100)
        rates.append([group["lr"] for group in run.optimizer.param_groups[:2]])
    assert [head for head, _ in rates] == [1e-4] * 10 + [5e-5] * 2 + [2.5e-5] * 2
    assert {rate for _, rate in rates} == {1e-5}


@uses_bfloat16
def test_bfloat16_losses_are_close_to_float32(scenes: Path, text: Path, tmp_path: Path) -> None:
    losses = {}
    for precision in ("float32", "bfloat16"):
        run = small_run(tiny(text, precision=precision), scenes, tmp_path / precision)
        losses[precision] = [run.step(items(run), 20)["loss"] for _ in range(8)]
    assert losses["bfloat16"] != losses["float32"]  # it did use another precision
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["bfloat16"][-1] < 0.95 * losses["bfloat16"][0]


def test_loss_that_is_not_finite_names_the_images(scenes: Path, text: Path, tmp_path: Path) -> None:
    run = small_run(tiny(text), scenes, tmp_path)
    with torch.no_grad():
        run.model.head.project_phrases.weight.fill_(float("nan"))
    with pytest.raises(InputError, match=r"the loss is nan at step 0 on the images .*train/0"):
        run.step(items(run), 10)


def test_unreadable_image_is_named_and_fatal_unless_skipped(
    scenes: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "data"
    shutil.copytree(scenes, broken)
    bad = sorted((broken / "images" / "train").iterdir())[3]
    bad.write_bytes(b"not an image")
    options = ("--epochs", "1", "--set", "validation_fraction=0")
    assert main(arguments(broken, text, tmp_path / "fatal", *options)) == 2
    assert bad.name in capsys.readouterr().err
    assert main(arguments(broken, text, tmp_path / "skip", *options, "--skip-bad", "1")) == 0
    assert (tmp_path / "skip" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--set", "model.rouns=1"], "rouns"),
        (["--set", "model.rounds=two"], "two"),
        (["--set", "epochs"], "FIELD=VALUE"),
        (["--set", "model.pointing.draws=8"], "pointing is None"),
        (["--set", "model.rounds.x=1"], "rounds is 1"),
        (["--epochs", "0"], "epochs is 0"),
        (["--set", "validation_fraction=0.9999999"], "empty"),
        (["--set", "lr_image=0"], "frozen"),
        (["--set", "narratives_per_image=0"], "narratives_per_image is 0"),
        (["--data", "nowhere"], "nowhere"),
        (["--init", "nowhere"], "nowhere"),
        (["--preset", "papr"], "papr"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(
    scenes: Path, text: Path, tmp_path: Path, more: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(scenes, text, tmp_path / "run", *more)) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("ppmn: ") and word in said


def test_run_of_another_configuration_is_refused(
    scenes: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ("--epochs", "1", "--set", "validation_fraction=0")
    assert main(arguments(scenes, text, tmp_path, *quick)) == 0
    before = (tmp_path / "model.safetensors").read_bytes()
    assert main(arguments(scenes, text, tmp_path, *quick, "--set", "lr=0.5")) == 2
    assert "config.lr was 0.001 and is 0.5" in capsys.readouterr().err
    often = [f"{a}=2" if a.startswith(str(scenes)) else a for a in arguments(scenes, text, tmp_path, *quick)]
    assert main(often) == 2
    assert "weight was 1.0 and is 2.0" in capsys.readouterr().err
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_fine_tuning_another_network(scenes: Path, text: Path, tmp_path: Path) -> None:
    quick = ("--epochs", "1", "--set", "validation_fraction=0")
    assert main(arguments(scenes, text, tmp_path / "first", *quick)) == 0
    more = (*quick, "--init", str(tmp_path / "first"), "--set", "lr_image=0")
    assert main(arguments(scenes, text, tmp_path / "second", *more)) == 0
    first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("first", "second"))
    image = [n for n in first if n.startswith("image_encoder.")]
    assert image and all(torch.equal(first[n], second[n]) for n in image)
    assert any(not torch.equal(first[n], second[n]) for n in first)
    deeper = (*more, "--set", "model.rounds=2")
    assert main(arguments(scenes, text, tmp_path / "third", *deeper)) == 0
    assert weights.load_model(tmp_path / "third").config.rounds == 2


def test_dry_run_estimates_and_writes_nothing(
    scenes: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(scenes, text, tmp_path / "run", "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "steps per epoch" in said and "peak memory" in said and "hours" in said
    assert not list((tmp_path / "run").rglob("*.*"))


def test_presets() -> None:
    paper, released = PRESETS["paper"](), PRESETS["ppmn-released"]()
    assert (paper.batch_size, paper.epochs) == (12, 14)
    assert (paper.lr, paper.lr_text, paper.lr_image) == (1e-4, 1e-5, 0)
    assert paper.model.variant == "paper" and not paper.per_process
    assert released.model.variant == "released" and released.per_process and released.lr_text == 0
    assert PRESETS["dagger"]().lr_image > 0 and PRESETS["dagger"]().model.image.form == "torchvision"
    assert override(paper, "model.pixels", "0").model.pixels == 0


def test_ablation_writes_a_table_and_a_picture(
    scenes: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = [f"--set={f}" for f in (*SMALL, f"model.text.source={text}", "validation_fraction=0")]
    command = [
        "ablate",
        "--preset",
        "scenes",
        "--data",
        str(scenes),
        "--test",
        str(scenes),
        "--out",
        str(tmp_path),
    ]
    command += ["--epochs", "1", "--batch-size", "8", "--seeds", "0", "1", *fields]
    assert main([*command, "--table", "pixels", "--values", "0", "4"]) == 0
    rows = (tmp_path / "pixels.md").read_text().splitlines()
    assert rows[0] == "| S | overall | things | stuff | singulars | plurals |"
    assert rows[2].startswith("| 0 | ") and rows[3].startswith("| 4 | ") and "±" in rows[3]
    assert (tmp_path / "pixels.png").stat().st_size > 1000
    before = (tmp_path / "pixels-4-seed1" / "model.safetensors").stat().st_mtime_ns
    assert main([*command, "--table", "pixels", "--values", "0", "4"]) == 0
    assert (tmp_path / "pixels-4-seed1" / "model.safetensors").stat().st_mtime_ns == before
    assert main([*command, "--table", "pixels", "--values", "0", "--epochs", "2"]) == 2
    assert "config.epochs was 1 and is 2" in capsys.readouterr().err
    for table, values in (("rounds", ("1", "3")), ("aggregation", ("mutan", "sk", "mca"))):
        assert main([*command, "--table", table, "--seeds", "0", "--values", *values]) == 0
        cells = [line.split(" | ") for line in (tmp_path / f"{table}.md").read_text().splitlines()[2:]]
        assert [cell[0].removeprefix("| ") for cell in cells if len(cell) > 1] == list(values)
        assert all(0 <= float(cell[1]) <= 100 for cell in cells if len(cell) > 1)


def test_training_imports_without_the_resource_module() -> None:
    code = "import sys; sys.modules['resource'] = None; from ppmn.training import trainer"
    code += "; print(repr(trainer.peak_memory()))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "''"
