"""Noun phrases against those marked by hand: `python bench/phrases.py [ROOT]`.

ROOT is a data set of narratives in the layout of the PNG benchmark (annotations/png_coco_val2017.json). A
phrase is right where both its ends are, after articles, possessives and demonstratives are left out of both.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path

from ppmn.errors import InputError
from ppmn.phrases.rules import find_phrases
from ppmn.phrases.word_lists import DETERMINERS
from ppmn.types import Span

SHARED = Path(__file__).resolve().parents[2] / "shared"


def bare(caption: str, span: Span) -> Span:
    """A span without leading determiners and outer spaces."""
    start, end = span
    while start < end:
        word = caption[start:end].split(" ", 1)[0]
        if word and word.lower() not in DETERMINERS:
            break
        start += max(len(word), 1)
    return start, start + len(caption[start:end].rstrip())


def marked(narrative: dict) -> list[Span]:
    """The spans of the segments marked as nouns, found in the caption one after another."""
    caption, at, spans = narrative["caption"], 0, []
    for segment in narrative["segments"]:
        start = caption.find(segment["utterance"], at)
        if start < 0:
            raise InputError(
                f"“{segment['utterance']}” is not in the caption of photo {narrative['image_id']}."
            )
        at = start + len(segment["utterance"])
        if segment["noun"]:
            spans.append(bare(caption, (start, at)))
    return spans


def cause(span: Span, others: list[Span], found: bool) -> str:
    """Why a span has no partner: its ends differ from an overlapping one, or there is none."""
    near = [other for other in others if other[0] < span[1] and span[0] < other[1]]
    if not near:
        return "found, not marked" if found else "marked, not found"
    if len(near) > 1:
        return "two marked, one found" if found else "one marked, two found"
    ends = [name for name, a, b in zip(("start", "end"), span, near[0], strict=True) if a != b]
    return f"another {' and '.join(ends)}"


def main(root: Path) -> None:
    narratives = json.loads((root / "annotations" / "png_coco_val2017.json").read_text(encoding="utf-8"))
    find_phrases("A first caption, so that the weights are read.")
    same = there = ours = 0
    mistakes: Counter[tuple[str, str]] = Counter()
    spent = 0.0
    for narrative in narratives:
        caption, gold = narrative["caption"], marked(narrative)
        begun = time.process_time()
        found = [bare(caption, (phrase.start, phrase.end)) for phrase in find_phrases(caption)]
        spent += time.process_time() - begun
        both = set(found) & set(gold)
        same, there, ours = same + len(both), there + len(gold), ours + len(found)
        mistakes.update((caption[slice(*s)], cause(s, gold, True)) for s in found if s not in both)
        mistakes.update((caption[slice(*s)], cause(s, found, False)) for s in gold if s not in both)
    print(f"{len(narratives)} narratives, {there} phrases marked, {ours} found, {same} the same")
    print(f"precision {same / ours:.4f}  recall {same / there:.4f}  F1 {2 * same / (there + ours):.4f}")
    print(f"{1000 * spent / len(narratives):.1f} ms of processor time a narrative")
    for (text, why), count in mistakes.most_common(30):
        print(f"{count:4d}  {why:24s} {text}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED / "data" / "narrated")
