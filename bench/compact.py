"""Models, photo sizes and thresholds side by side on the validation tenth: what is chosen is chosen here.

python -m bench.compact MODEL ... --data ROOT ... [--sides 336x448 462x616] [--photos 300]
python -m bench.compact MODEL --data ROOT ... --sides 336x448 462x616 --swapped --out DIR

For every model at every size, with every share of the highest response that a mask ends at (--edges) and
that its parts must reach (--peaks): Average Recall (full) by threshold, at the best one every split, and
the paired difference to the first line. A+B is the mean of models' weights. --swapped puts captions on
other photos of their source: the share of phrases whose mask is empty or whose score is low, for what is
annotated as not there and for what is.
--out saves the best model with its size, threshold, edge and peak, in half precision.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ppmn.data.narratives import Narrative
from ppmn.data.panoptic import IGNORE_ID
from ppmn.data.targets import full_masks
from ppmn.evaluation.metrics import AverageRecall, PhraseKey
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.maps import postprocess
from ppmn.model import folder as weights
from ppmn.model.network import PPMN
from ppmn.presets import compact
from ppmn.training.sources import Source, open_sources
from ppmn.training.validation import validation

THRESHOLDS = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55)
SCORES = (0.5, 0.55, 0.6, 0.65, 0.7)  # under which a phrase is called absent
Held = dict[str, list[Narrative]]
Shares = tuple[float, float]  # edge, peak
ByThreshold = dict[float, AverageRecall]


@dataclass(frozen=True)
class Swapped:
    """The score of one phrase: the mean response inside its mask, 0 where that is empty."""

    there: bool
    score: float


@dataclass(frozen=True)
class Line:
    """One model at one size, edge and peak, at its best threshold."""

    recall: float
    model: str
    sides: str
    edge: float
    peak: float
    threshold: float

    def load(self) -> PPMN:
        """The model, with this size, edge, peak and threshold in its configuration."""
        model = opened(self.model, self.sides)
        model.config = replace(
            model.config, threshold=self.threshold, relative_threshold=self.edge, hysteresis_peak=self.peak
        )
        return model


def opened(name: str, sides: str) -> PPMN:
    """A model at a size; "A+B" has A's configuration and the mean of their weights, as "A+B+C" has."""
    model, *others = (weights.load_model(weights.model_folder(part)) for part in name.split("+"))
    for number, other in enumerate(others, 2):
        theirs = other.state_dict()
        model.load_state_dict({n: w.lerp(theirs[n], 1 / number) for n, w in model.state_dict().items()})
    short, long = map(int, sides.split("x"))
    model.config = replace(model.config, short_side=short, long_side=long)
    model.preprocess = replace(model.preprocess, short_side=short, long_side=long)
    return model


def measure(grounder: Grounder, held: Held, shares: Sequence[Shares]) -> dict[Shares, ByThreshold]:
    """Each phrase once for every edge, peak and threshold."""
    metrics = {share: {threshold: AverageRecall() for threshold in THRESHOLDS} for share in shares}
    narratives = [(source, n) for source, mine in held.items() for n in mine]
    for source, narrative in tqdm(narratives, "validation"):
        ids, phrases = narrative.image.ids(), narrative.grounded
        truths = full_masks(ids, [p.segment_ids for p in phrases])
        spans = [(p.start, p.end) for p in phrases]
        encoded = grounder.encode(narrative.image.file)
        responses = encoded.raw_responses(narrative.caption, spans)
        for (edge, peak), threshold in product(shares, THRESHOLDS):
            maps = postprocess(responses, threshold=threshold, relative_threshold=edge, hysteresis_peak=peak)
            for n, (phrase, truth, response) in enumerate(zip(phrases, truths, maps, strict=True)):
                mask = encoded.geometry.mask(response, threshold) & (ids != IGNORE_ID)
                key = PhraseKey(source, narrative.image.id, narrative.index, n)
                found = metrics[edge, peak][threshold]
                found.update(key, mask, truth, thing=phrase.isthing, plural=phrase.plural)
    return metrics


def swapped(grounder: Grounder, sources: Sequence[Source], held: Held) -> Iterator[Swapped]:
    """Every caption on its own photo, and on the next one of its source."""
    for source in sources:
        mine = [] if not complete(source) else held.get(source.name, [])
        for own, other in zip(mine, mine[1:] + mine[:1], strict=True):
            spans = [(p.start, p.end) for p in own.grounded]
            for narrative in (own, other):
                there = {s.category_id for s in narrative.image.segments}
                maps = grounder.response_maps(narrative.image.file, own.caption, spans)
                for phrase, chances in zip(own.grounded, maps, strict=True):
                    kinds = {s.category_id for s in own.image.segments if s.id in phrase.segment_ids}
                    if narrative is own or not kinds & there:
                        inside = chances > grounder.threshold
                        score = float(chances[inside].mean()) if inside.any() else 0.0
                        yield Swapped(narrative is own, score)


def complete(source: Source) -> bool:
    """Whether all of its categories are annotated in every photo: what teachers labelled is not."""
    return all(s.score is None for n in range(len(source)) for s in source.image(n).segments)


def tell(metrics: ByThreshold, first: AverageRecall | None) -> float:
    """Print one line of the table; its best threshold."""
    recall = {t: m.compute().average_recall["overall"] or 0.0 for t, m in metrics.items()}
    best = max(recall, key=lambda t: recall[t])
    print("  by threshold: " + ", ".join(f"{t:.2f} {r:.1f}" for t, r in recall.items()))
    scores = metrics[best].compute()
    splits = (f"{n} {v:.1f} ({scores.phrases[n]})" for n, v in scores.average_recall.items() if v is not None)
    print(f"  at {best}: {', '.join(splits)}")
    if first is not None:
        differences, _ = metrics[best].difference(first)
        shown = (f"{n} {d.mean:+.2f} [{d.low:+.2f}, {d.high:+.2f}]" for n, d in differences.items() if d)
        print(f"  against the first: {', '.join(shown)}")
    return best


def tell_swapped(found: Sequence[Swapped]) -> None:
    for there, name in ((True, "in the photo"), (False, "not in the photo")):
        scores = np.array([s.score for s in found if s.there is there])
        low = ", ".join(f"< {cut} {100 * np.mean(scores < cut):.1f} %" for cut in SCORES)
        print(f"{name}: {len(scores)} phrases, empty {100 * np.mean(scores == 0):.1f} %, score {low}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", action="append", required=True, metavar="ROOT[:SPLIT]")
    parser.add_argument("--sides", nargs="+", default=["336x448"])
    parser.add_argument("--photos", type=int, default=300)
    parser.add_argument("--edges", nargs="+", type=float, default=[0.0])
    parser.add_argument("--peaks", nargs="+", type=float, default=[0.0])
    parser.add_argument("--swapped", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sources = open_sources(args.data)
    held = validation(sources, replace(compact(), validation_images=args.photos))
    if not any(held.values()):
        parser.error(f"no photo of {', '.join(args.data)} is in the validation tenth")
    print(f"{sum(map(len, held.values()))} photos of the validation tenth")
    first: AverageRecall | None = None
    lines: list[Line] = []
    for name, sides in product(args.models, args.sides):
        shares = list(product(args.edges, args.peaks))
        for (edge, peak), metrics in measure(Grounder(opened(name, sides)), held, shares).items():
            print(f"{name} at {sides}, edge {edge:g}, peak {peak:g}:")
            threshold = tell(metrics, first)
            first = first or metrics[threshold]
            recall = metrics[threshold].compute().average_recall["overall"] or 0.0
            lines.append(Line(recall, name, sides, edge, peak, threshold))
    best = max(lines, key=lambda line: line.recall)
    shown = f"edge {best.edge:g}, peak {best.peak:g}, threshold {best.threshold}"
    print(f"best: {best.model} at {best.sides}, {shown}")
    if args.swapped:
        tell_swapped(list(swapped(Grounder(best.load()), sources, held)))
    if args.out:
        weights.save_model(best.load(), args.out, half=True)
        print(f"saved to {args.out}")


if __name__ == "__main__":
    main()
