"""Compare models, image sizes and post-processing on the images held out for validation.

python -m experiments.measure_compact MODEL ... --data ROOT ... [--sides 336x448 462x616] [--images 300]
python -m experiments.measure_compact MODEL --data ROOT ... --sides 336x448 462x616 --swapped --out DIR

For every model at every size, with every relative threshold and hysteresis peak: Average Recall (full) by
threshold, every split at the best one, and the paired difference to the first row. A+B is the mean of the
weights of two models. --swapped puts captions on other images of their source and prints the percentage of
phrases with an empty mask or a low score, for phrases that are in the image and for phrases that are not.
--out saves the best model with its size and post-processing, in half precision.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ppmn.cli.arguments import parse_spec
from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import IGNORE_ID
from ppmn.data.targets import full_masks
from ppmn.evaluation.metrics import AverageRecall, PhraseKey
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.maps import postprocess
from ppmn.model.folder import load_model, model_folder, save_model
from ppmn.model.network import PPMN
from ppmn.presets import compact
from ppmn.training.sources import Source, open_training_sources
from ppmn.training.validation import validation_narratives

THRESHOLDS = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55)
SCORES = (0.5, 0.55, 0.6, 0.65, 0.7)  # below which a phrase is called absent
HeldOut = dict[str, list[Narrative]]
PostProcessing = tuple[float, float]  # relative threshold, hysteresis peak
ByThreshold = dict[float, AverageRecall]


@dataclass(frozen=True)
class SwappedScore:
    """The score of one phrase: the mean response inside its mask, 0 if that is empty."""

    present: bool
    score: float


@dataclass(frozen=True)
class Row:
    """One model at one size and post-processing, at its best threshold."""

    recall: float
    model: str
    sides: str
    relative_threshold: float
    peak: float
    threshold: float

    def __str__(self) -> str:
        return (
            f"{self.model} at {self.sides}, relative threshold {self.relative_threshold:g}, "
            f"peak {self.peak:g}, threshold {self.threshold}"
        )

    def load(self) -> PPMN:
        """The model, with this size and post-processing in its configuration."""
        model = load_mean(self.model, self.sides)
        model.config = replace(
            model.config,
            threshold=self.threshold,
            relative_threshold=self.relative_threshold,
            hysteresis_peak=self.peak,
        )
        return model


def load_mean(name: str, sides: str) -> PPMN:
    """A model at a size; "A+B" has the configuration of A and the mean of their weights."""
    model, *others = (load_model(model_folder(part)) for part in name.split("+"))
    for number, other in enumerate(others, 2):
        theirs = other.state_dict()
        model.load_state_dict({n: w.lerp(theirs[n], 1 / number) for n, w in model.state_dict().items()})
    short, long = map(int, sides.split("x"))
    model.config = replace(model.config, short_side=short, long_side=long)
    model.preprocess = replace(model.preprocess, short_side=short, long_side=long)
    return model


def measure(
    grounder: Grounder, held_out: HeldOut, settings: Sequence[PostProcessing]
) -> dict[PostProcessing, ByThreshold]:
    """Measure each phrase once for every post-processing and threshold."""
    metrics = {setting: {t: AverageRecall() for t in THRESHOLDS} for setting in settings}
    narratives = [(source, n) for source, mine in held_out.items() for n in mine]
    for source, narrative in tqdm(narratives, "validation"):
        ids, phrases = narrative.image.ids(), narrative.grounded
        truths = full_masks(ids, [p.segment_ids for p in phrases])
        encoded = grounder.encode(narrative.image.file)
        responses = encoded.raw_responses(narrative.caption, [(p.start, p.end) for p in phrases])
        for (relative, peak), threshold in product(settings, THRESHOLDS):
            maps = postprocess(
                responses, threshold=threshold, relative_threshold=relative, hysteresis_peak=peak
            )
            metric = metrics[relative, peak][threshold]
            for n, (phrase, truth, response) in enumerate(zip(phrases, truths, maps, strict=True)):
                mask = encoded.geometry.mask(response, threshold) & (ids != IGNORE_ID)
                key = PhraseKey(source, narrative.image.id, narrative.index, n)
                metric.update(key, mask, truth, thing=phrase.isthing, plural=phrase.plural)
    return metrics


def swapped_scores(
    grounder: Grounder, sources: Sequence[Source], held_out: HeldOut
) -> Iterator[SwappedScore]:
    """Every caption on its own image, and on the next one of its source."""
    for source in sources:
        mine = held_out.get(source.name, []) if fully_annotated(source) else []
        for own, other in zip(mine, mine[1:] + mine[:1], strict=True):
            spans = [(p.start, p.end) for p in own.grounded]
            for narrative in (own, other):
                present = {s.category_id for s in narrative.image.segments}
                maps = grounder.response_maps(narrative.image.file, own.caption, spans)
                for phrase, response in zip(own.grounded, maps, strict=True):
                    named = {s.category_id for s in own.image.segments if s.id in phrase.segment_ids}
                    if narrative is own or not named & present:
                        inside = response > grounder.threshold
                        score = float(response[inside].mean()) if inside.any() else 0.0
                        yield SwappedScore(narrative is own, score)


def fully_annotated(source: Source) -> bool:
    """Whether all categories are annotated in every image; labels predicted by models are not."""
    return all(s.score is None for n in range(len(source)) for s in source.annotation(n).segments)


def show(metrics: ByThreshold, first: AverageRecall | None) -> float:
    """Print one row of the table and return its best threshold."""
    recall = {t: m.compute().average_recall["overall"] or 0.0 for t, m in metrics.items()}
    best = max(recall, key=lambda t: recall[t])
    print("  by threshold: " + ", ".join(f"{t:.2f} {r:.1f}" for t, r in recall.items()))
    scores = metrics[best].compute()
    splits = (f"{n} {v:.1f} ({scores.phrases[n]})" for n, v in scores.average_recall.items() if v is not None)
    print(f"  at {best}: {', '.join(splits)}")
    if first is not None:
        differences, _ = metrics[best].difference(first)
        shown = (f"{n} {d.mean:+.2f} [{d.low:+.2f}, {d.high:+.2f}]" for n, d in differences.items() if d)
        print(f"  difference to the first row: {', '.join(shown)}")
    return best


def show_swapped(found: Sequence[SwappedScore]) -> None:
    """Print how often masks are empty and scores are low."""
    for present, name in ((True, "in the image"), (False, "not in the image")):
        scores = np.array([s.score for s in found if s.present is present])
        low = ", ".join(f"< {limit} {100 * np.mean(scores < limit):.1f} %" for limit in SCORES)
        print(f"{name}: {len(scores)} phrases, empty {100 * np.mean(scores == 0):.1f} %, score {low}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", help="names or folders of models; A+B is their mean")
    parser.add_argument(
        "--data", action="append", required=True, metavar="ROOT[:SPLIT]", help="data set; repeatable"
    )
    parser.add_argument("--sides", nargs="+", default=["336x448"], help="short and long side of images")
    parser.add_argument("--images", type=int, default=300, help="at most so many of the images held out")
    parser.add_argument("--relative-thresholds", nargs="+", type=float, default=[0.0], help="to compare")
    parser.add_argument("--peaks", nargs="+", type=float, default=[0.0], help="hysteresis peaks to compare")
    parser.add_argument("--swapped", action="store_true", help="also put captions on other images")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="save the best model here")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    sources = open_training_sources([parse_spec(text) for text in args.data])
    held_out = validation_narratives(sources, replace(compact(), validation_images=args.images))
    if not any(held_out.values()):
        raise SystemExit(f"no image of {', '.join(args.data)} is held out for validation")
    print(f"{sum(map(len, held_out.values()))} images held out for validation")
    first: AverageRecall | None = None
    rows: list[Row] = []
    settings = list(product(args.relative_thresholds, args.peaks))
    for name, sides in product(args.models, args.sides):
        measured = measure(Grounder(load_mean(name, sides)), held_out, settings)
        for (relative, peak), metrics in measured.items():
            print(f"{name} at {sides}, relative threshold {relative:g}, peak {peak:g}:")
            threshold = show(metrics, first)
            first = first or metrics[threshold]
            recall = metrics[threshold].compute().average_recall["overall"] or 0.0
            rows.append(Row(recall, name, sides, relative, peak, threshold))
    best = max(rows, key=lambda row: row.recall)
    print(f"best: {best}")
    if args.swapped:
        show_swapped(list(swapped_scores(Grounder(best.load()), sources, held_out)))
    if args.out:
        save_model(best.load(), args.out, half=True)
        print(f"saved to {args.out}")


if __name__ == "__main__":
    main()
