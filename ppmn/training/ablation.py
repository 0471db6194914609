"""The paper's ablation tables: one training run per cell and seed, one table per question."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ppmn.config import TrainConfig
from ppmn.data.panoptic import DataSpec
from ppmn.evaluation.evaluate import evaluate, model_answers, open_narratives_of
from ppmn.evaluation.figures import new_figure
from ppmn.evaluation.metrics import SPLITS
from ppmn.evaluation.selection import NarrativeSource
from ppmn.files import read_json, replacing, write_json
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.methods import METHODS
from ppmn.model.folder import MODEL_FILE, load_model
from ppmn.model.locate import sha256
from ppmn.presets import override
from ppmn.training.run_folder import refuse_changes
from ppmn.training.sources import Source, open_training_sources
from ppmn.training.trainer import train

_log = logging.getLogger(__name__)

Recalls = dict[str, float | None]  # Average Recall of every split


@dataclass(frozen=True)
class AblationTable:
    """One table of the paper: the field that varies, its values, and fields that are fixed."""

    title: str
    field: str
    values: tuple[str, ...]
    fixed: tuple[tuple[str, str], ...] = ()


ABLATION_TABLES = {
    "pixels": AblationTable("S", "model.pixels", ("0", "100", "200", "300"), (("model.rounds", "1"),)),
    "rounds": AblationTable("L", "model.rounds", ("1", "2", "3", "4"), (("model.pixels", "200"),)),
    "aggregation": AblationTable("Method", "model.aggregation", ("mutan", "sk", "mca")),
}


def ablate(
    name: str,
    config: TrainConfig,
    train_specs: Sequence[DataSpec],
    test_specs: Sequence[DataSpec],
    out: Path,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    values: Sequence[str] = (),
    init: Path | None = None,
    cache: Path | None = None,
) -> str:
    """Train and measure every cell of a table, draw it and return it as Markdown; done cells are skipped.

    A cell that was done with another configuration, other data or another test set is refused.
    """
    table, test = ABLATION_TABLES[name], open_narratives_of(test_specs)
    data = _data_identity(open_training_sources(train_specs), test, init)
    cells: dict[str, list[Recalls]] = {}
    for value in values or table.values:
        changed = config
        for field, text in (*table.fixed, (table.field, value)):
            changed = override(changed, field, text)
        for seed in seeds:
            folder, seeded = out / f"{name}-{value}-seed{seed}", override(changed, "seed", str(seed))
            identity = json.loads(json.dumps({**data, "config": asdict(seeded)}))
            scores = folder / "scores.json"
            if scores.is_file():
                refuse_changes(folder, read_json(scores).get("identity", {}), identity)
            else:
                train(seeded, train_specs, folder, init=init, cache=cache)
                write_json(scores, {"identity": identity, "average_recall": _measure_cell(folder, test)})
            cells.setdefault(value, []).append(read_json(scores)["average_recall"])
    text = _markdown(table.title, cells)
    with replacing(out / f"{name}.md") as part:
        part.write_text(text, encoding="utf-8")
    _draw(table.title, cells, out / f"{name}.png")
    _log.info(f"the table is in {out / f'{name}.md'} and {out / f'{name}.png'}")
    return text


def _data_identity(
    sources: Sequence[Source], test: Mapping[str, NarrativeSource], init: Path | None
) -> dict[str, Any]:
    """What every cell is trained on, starts from and is measured on, by content."""
    return {
        "init": sha256(init / MODEL_FILE) if init else "",
        "data": {s.name: [s.fingerprint, s.weight, s.complete] for s in sources},
        "test": {name: narratives.fingerprint for name, narratives in test.items()},
    }


def _measure_cell(folder: Path, test: Mapping[str, NarrativeSource]) -> Recalls:
    grounder = Grounder(load_model(folder, METHODS), name=folder.name)
    recalls: Recalls = evaluate(model_answers(grounder), test).metric.compute().average_recall
    return recalls


def _markdown(title: str, cells: dict[str, list[Recalls]]) -> str:
    """The table in the paper's form: Average Recall, mean and standard deviation over seeds."""
    seeds = max(len(runs) for runs in cells.values())
    lines = [f"| {title} | {' | '.join(SPLITS)} |", "|---" * (len(SPLITS) + 1) + "|"]
    for value, runs in cells.items():
        lines.append(f"| {value} | {' | '.join(_cell(_values(runs, split)) for split in SPLITS)} |")
    return "\n".join(
        [*lines, "", f"Average Recall, protocol full, {seeds} seeds: mean ± standard deviation.", ""]
    )


def _values(runs: Sequence[Recalls], split: str) -> list[float]:
    return [value for run in runs if (value := run[split]) is not None]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def _draw(title: str, cells: dict[str, list[Recalls]], file: Path) -> None:
    """A dot per run, a line through the means."""
    figure = new_figure(6, 4)
    axes = figure.subplots()
    for index, split in enumerate(SPLITS):
        columns = {x: values for x, runs in enumerate(cells.values()) if (values := _values(runs, split))}
        means = [mean(values) for values in columns.values()]
        axes.plot(list(columns), means, color=f"C{index}", label=split)
        for x, values in columns.items():
            axes.scatter([x] * len(values), values, color=f"C{index}", s=12)
    axes.set_xticks(range(len(cells)), list(cells))
    axes.set(xlabel=title, ylabel="Average Recall (full)")
    axes.legend()
    with replacing(file) as part:
        figure.savefig(part, dpi=120, format="png")
