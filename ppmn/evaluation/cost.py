"""What a system costs: parameters, samples and core-hours of training, processor time of an answer."""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ppmn.data.narratives import Narrative
from ppmn.files import read_json
from ppmn.grounding.grounder import Grounder
from ppmn.images import read_image


def training_cost(runs: Sequence[Path]) -> dict[str, float]:
    """Samples and core-hours of training, summed over the runs that made a system.

    Time is the processor time of the steps, reading in other processes not counted.
    """
    samples, seconds = 0, 0.0
    for run in runs:
        processes, images = _step_size(run)
        for line in _steps(run / "log.jsonl"):
            samples += images
            seconds += line["core_seconds"] * processes
    return {"samples": samples, "core_hours": seconds / 3600}


def step_seconds(run: Path) -> float:
    """Core-seconds of a training step per image: the median of the last epoch, when caches are filled."""
    processes, images = _step_size(run)
    steps = list(_steps(run / "log.jsonl"))
    last = [line["core_seconds"] for line in steps if line["epoch"] == steps[-1]["epoch"]]
    return statistics.median(last) * processes / images


def _step_size(run: Path) -> tuple[int, int]:
    """How many processes made a step, and of how many images."""
    settings = read_json(run / "train.json")
    processes, config = settings["processes"], settings["config"]
    return processes, config["batch_size"] * (processes if config["per_process"] else 1)


def _steps(log: Path) -> Iterator[dict[str, Any]]:
    for text in log.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if "core_seconds" in line:
            yield line


def answer_cost(grounder: Grounder, narratives: Sequence[Narrative]) -> dict[str, float]:
    """Parameters, and core-milliseconds of encoding an image and of grounding a caption on it."""
    encoding = grounding = 0.0
    for narrative in narratives:
        image = read_image(narrative.image.file)
        spans = [(p.start, p.end) for p in narrative.grounded]
        started = time.process_time()
        encoded = grounder.encode(image)
        encoding += time.process_time() - started
        started = time.process_time()
        encoded.responses(narrative.caption, spans)
        grounding += time.process_time() - started
    count = max(len(narratives), 1)
    return {
        "parameters": sum(p.numel() for p in grounder.model.parameters()),
        "ms_image": 1000 * encoding / count,
        "ms_caption": 1000 * grounding / count,
    }
