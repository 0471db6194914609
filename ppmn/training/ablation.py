"""The paper's ablation tables: one training run a cell and seed, one table a question."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from ppmn.config import TrainConfig
from ppmn.errors import InputError
from ppmn.evaluation.evaluate import evaluate, model_answers, open_sources
from ppmn.evaluation.metrics import SPLITS
from ppmn.files import replacing
from ppmn.grounding.grounder import Grounder
from ppmn.model import folder as weights
from ppmn.presets import override
from ppmn.training.trainer import train

Scores = dict[str, float | None]


@dataclass(frozen=True)
class Table:
    """One table of the paper: what changes, its values, and what is held at which value."""

    title: str
    field: str
    values: tuple[str, ...]
    held: tuple[tuple[str, str], ...] = ()


TABLES = {
    "pixels": Table("S", "model.pixels", ("0", "100", "200", "300"), (("model.rounds", "1"),)),
    "rounds": Table("L", "model.rounds", ("1", "2", "3", "4"), (("model.pixels", "200"),)),
    "aggregation": Table("Method", "model.aggregation", ("mutan", "sk", "mca")),
}


def ablate(
    name: str,
    config: TrainConfig,
    data: Sequence[str],
    test: Sequence[str],
    out: Path,
    seeds: Sequence[int],
    values: Sequence[str] = (),
    init: Path | None = None,
    cache: Path | None = None,
) -> None:
    """Train and measure every cell of a table; cells that are done are not done again."""
    table = TABLES[name]
    cells: dict[str, list[Scores]] = {}
    for value in values or table.values:
        changed = config
        for field, text in (*table.held, (table.field, value)):
            changed = override(changed, field, text)
        for seed in seeds:
            folder = out / f"{name}-{value}-seed{seed}"
            scores = cell(override(changed, "seed", str(seed)), data, test, folder, init, cache)
            cells.setdefault(value, []).append(scores)
    text = markdown(table.title, cells)
    with replacing(out / f"{name}.md") as part:
        part.write_text(text, encoding="utf-8")
    draw(table.title, cells, out / f"{name}.png")
    print(text)
    print(f"in {out / f'{name}.md'} and {out / f'{name}.png'}")


def cell(
    config: TrainConfig,
    data: Sequence[str],
    test: Sequence[str],
    folder: Path,
    init: Path | None,
    cache: Path | None,
) -> Scores:
    """One run, trained and measured with protocol `full`; a run that was stopped goes on."""
    file = folder / "scores.json"
    if not file.is_file():
        train(config, data, folder, init, cache)
        grounder = Grounder(weights.load_model(folder), name=folder.name)
        scores = evaluate(model_answers(grounder), open_sources(test)).metric.compute()
        with replacing(file) as part:
            part.write_text(json.dumps(scores.average_recall) + "\n", encoding="utf-8")
    try:
        found: Scores = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{file} is not JSON ({error}); delete it to measure again") from error
    return found


def markdown(title: str, cells: dict[str, list[Scores]]) -> str:
    """The table in the paper's form: Average Recall, mean and standard deviation over seeds."""
    seeds = max(len(runs) for runs in cells.values())
    lines = [f"| {title} | {' | '.join(SPLITS)} |", "|---" * (len(SPLITS) + 1) + "|"]
    for value, runs in cells.items():
        lines.append(f"| {value} | {' | '.join(figure(known(runs, split)) for split in SPLITS)} |")
    return "\n".join(
        [*lines, "", f"Average Recall, protocol full, {seeds} seeds: mean ± standard deviation.", ""]
    )


def known(runs: Sequence[Scores], split: str) -> list[float]:
    return [value for run in runs if (value := run[split]) is not None]


def figure(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def draw(title: str, cells: dict[str, list[Scores]], file: Path) -> None:
    """Every run a dot, the mean a line."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("tables are drawn with matplotlib: pip install 'ppmn[train]'") from error
    picture = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    for index, split in enumerate(SPLITS):
        columns = {x: values for x, runs in enumerate(cells.values()) if (values := known(runs, split))}
        axes.plot(
            list(columns), [mean(values) for values in columns.values()], color=f"C{index}", label=split
        )
        for x, values in columns.items():
            axes.scatter([x] * len(values), values, color=f"C{index}", s=12)
    axes.set_xticks(range(len(cells)), list(cells))
    axes.set(xlabel=title, ylabel="Average Recall (full)")
    axes.legend()
    with replacing(file) as part:
        picture.savefig(part, dpi=120, format="png")
