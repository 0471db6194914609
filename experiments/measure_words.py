"""Words: the mean IoU of the common nouns of narratives on held-out images, as a Markdown table.

python -m experiments.measure_words --model compact --data-root PHOTOS --narratives narratives.txt

The nouns are the heads of the noun phrases in a file of narratives, the most frequent first, that the data
can judge. Singular: the noun alone is the caption, on images with one segment that it may mean. Plural: its
plural, on images with several or a crowd. A noun stands for the categories that the narrator uses it for, so
"man" is also asked where the one person is a woman. People's phrases: captions and expressions that people
wrote about single segments or groups of them, by their head noun.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from tqdm import tqdm

from experiments import probes as shared
from experiments.probes import Probe
from ppmn.data.narratives import narratives_file
from ppmn.data.panoptic import DataSpec, Panoptic
from ppmn.evaluation.evaluate import open_narratives_of
from ppmn.phrases.rules import find_phrases
from ppmn.synthetic.nouns import Lexicon, NounForm, Word, plural, singular

COMPLETE = ("coco_panoptic", "coco_things", "coco_people", "coco_instances", "ade")
BY_PEOPLE = ("flickr", "refcoco")
COLUMNS = ("singular", "plural", "people's phrases")


def common_nouns(file: Path) -> Counter[str]:
    """How often each noun is the head of a phrase that names an object."""
    lines = file.read_text(encoding="utf-8").splitlines()
    phrases = (phrase for line in tqdm(lines, file.name) for phrase in find_phrases(line))
    return Counter(singular(phrase.head) for phrase in phrases if not phrase.abstract)


def category_probes(sources: Sequence[tuple[Panoptic, Lexicon]], noun: str) -> Iterator[Probe]:
    """A noun alone, singular or plural, where the masks say what it means."""
    for panoptic, lexicon in sources:
        meant = lexicon.category_ids(Word(noun, NounForm.SINGULAR))
        for image in panoptic.images if meant else ():
            segments = [s for s in image.segments if s.category_id in meant]
            several = len(segments) > 1 or any(s.iscrowd for s in segments)
            if segments:
                text, ids = plural(noun) if several else noun, tuple(s.id for s in segments)
                yield Probe(image, text, (0, len(text)), ids, "plural" if several else "singular")


def people_probes(root: Path) -> dict[str, list[Probe]]:
    """Phrases that people wrote about held-out images, by their head noun."""
    found: dict[str, list[Probe]] = defaultdict(list)
    for panoptic in shared.held_out_sources(root, BY_PEOPLE):
        for probe in [*narrated_probes(panoptic), *expression_probes(panoptic)]:
            start, end = probe.span
            phrases = find_phrases(probe.caption[start:end])
            if phrases:
                found[singular(phrases[0].head)].append(probe)
    return found


def narrated_probes(panoptic: Panoptic) -> Iterator[Probe]:
    """The grounded phrases of the held-out narratives of a source, if it has any."""
    if not narratives_file(panoptic.root, panoptic.split).is_file():
        return
    for rows in open_narratives_of([DataSpec(panoptic.root, panoptic.split)], "validation").values():
        for narrative in rows:
            for phrase in narrative.grounded:
                span = (phrase.start, phrase.end)
                yield Probe(narrative.image, narrative.caption, span, phrase.segment_ids, COLUMNS[2])


def expression_probes(panoptic: Panoptic) -> Iterator[Probe]:
    """The expressions of the segments of a source."""
    for image in panoptic.images:
        for segment in image.segments:
            for text in segment.expressions:
                yield Probe(image, text, (0, len(text)), (segment.id,), COLUMNS[2])


def choose_probes(args: argparse.Namespace) -> dict[str, list[Probe]]:
    """At most `per_noun` probes of each noun and column, for the most frequent nouns that have any."""
    held_out = shared.held_out_sources(args.data_root, COMPLETE)
    sources = [(panoptic, Lexicon(panoptic.categories)) for panoptic in held_out]
    people = people_probes(args.data_root)
    rng = np.random.default_rng(args.seed)
    chosen: dict[str, list[Probe]] = {}
    for noun, _ in common_nouns(args.narratives).most_common():
        if len(chosen) == args.nouns:
            break
        columns: dict[str, list[Probe]] = defaultdict(list)
        for probe in [*category_probes(sources, noun), *people.get(noun, ())]:
            columns[probe.row].append(probe)
        if columns:
            drawn = ([p[int(i)] for i in rng.permutation(len(p))[: args.per_noun]] for p in columns.values())
            chosen[noun] = [probe for probes in drawn for probe in probes]
    everything = [probe for probes in chosen.values() for probe in probes]
    kept = {probe.image.file for probe in shared.limited(everything, args.images, args.seed)}
    return {noun: [p for p in probes if p.image.file in kept] for noun, probes in chosen.items()}


def by_noun(probes: dict[str, list[Probe]], ious: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Mean IoU (0 to 100) and count of every noun and column."""
    values = iter(ious)
    table: dict[str, dict[str, Any]] = {}
    for noun, mine in probes.items():
        columns: dict[str, list[float]] = defaultdict(list)
        for probe in mine:
            columns[probe.row].append(next(values))
        table[noun] = {c: {"iou": 100 * mean(v), "count": len(v)} for c, v in columns.items()}
    return table


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--narratives", type=Path, required=True, help="text file, one narrative per line"
        )
        parser.add_argument("--nouns", type=int, default=300, help="number of nouns (default: 300)")
        per_noun = "at most so many probes of each noun and column (default: 20)"
        parser.add_argument("--per-noun", type=int, default=20, help=per_noun)

    args = shared.parse_arguments(__doc__, add)
    probes = choose_probes(args)
    everything = [probe for mine in probes.values() for probe in mine]
    tables = {
        name: by_noun(probes, shared.measure(grounder, everything))
        for name, grounder in shared.load_models(args.model).items()
    }
    header = ["noun", *(f"{name}, {column}" for name in tables for column in COLUMNS)]
    rows = []
    for noun in probes:
        found = [tables[name][noun].get(column) for name in tables for column in COLUMNS]
        rows.append([noun, *(f"{c['iou']:.1f} ({c['count']})" if c else "-" for c in found)])
    print(f"Mean IoU (number of phrases), {len(probes)} nouns, the most frequent first.\n")
    print(shared.show(header, rows))
    shared.write(args.json, {"seed": args.seed, "models": tables})


if __name__ == "__main__":
    main()
