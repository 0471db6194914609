"""Precision and recall of noun phrases against phrases marked by hand.

python -m experiments.phrase_accuracy [ROOT]

ROOT is a data set of narratives in the layout of the PNG benchmark (annotations/png_coco_val2017.json). A
phrase is correct if both its ends are, without leading articles, possessives and demonstratives.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ppmn.errors import InputError
from ppmn.phrases.rules import find_phrases
from ppmn.phrases.word_lists import DETERMINERS
from ppmn.types import Span

DEFAULT_ROOT = Path(__file__).resolve().parents[2] / "shared" / "data" / "narrated"
SHOWN_MISTAKES = 30


def without_determiners(caption: str, span: Span) -> Span:
    """A span without leading determiners and outer spaces."""
    start, end = span
    while start < end:
        word = caption[start:end].split(" ", 1)[0]
        if word and word.lower() not in DETERMINERS:
            break
        start += max(len(word), 1)
    return start, start + len(caption[start:end].rstrip())


def marked_spans(narrative: dict[str, Any]) -> list[Span]:
    """The spans of the segments that are marked as nouns, searched in the caption in order."""
    caption, position, spans = narrative["caption"], 0, []
    for segment in narrative["segments"]:
        utterance = segment["utterance"]
        start = caption.find(utterance, position)
        if start < 0:
            raise InputError(f"“{utterance}” is not in the caption of image {narrative['image_id']}")
        position = start + len(utterance)
        if segment["noun"]:
            spans.append(without_determiners(caption, (start, position)))
    return spans


def reason(span: Span, others: list[Span], *, found: bool) -> str:
    """Why a span has no equal: nothing overlaps it, several spans do, or its ends differ."""
    overlapping = [other for other in others if other[0] < span[1] and span[0] < other[1]]
    if not overlapping:
        return "found, not marked" if found else "marked, not found"
    if len(overlapping) > 1:
        return "two marked, one found" if found else "one marked, two found"
    ends = [name for name, a, b in zip(("start", "end"), span, overlapping[0], strict=True) if a != b]
    return f"another {' and '.join(ends)}"


def main(root: Path) -> None:
    narratives = json.loads((root / "annotations" / "png_coco_val2017.json").read_text(encoding="utf-8"))
    find_phrases("A first caption loads the weights.")
    correct = marked_count = found_count = 0
    mistakes: Counter[tuple[str, str]] = Counter()
    seconds = 0.0
    for narrative in narratives:
        caption, marked = narrative["caption"], marked_spans(narrative)
        start = time.process_time()
        phrases = find_phrases(caption)
        seconds += time.process_time() - start
        found = [without_determiners(caption, (phrase.start, phrase.end)) for phrase in phrases]
        both = set(found) & set(marked)
        correct += len(both)
        marked_count += len(marked)
        found_count += len(found)
        mistakes.update((caption[slice(*s)], reason(s, marked, found=True)) for s in found if s not in both)
        mistakes.update((caption[slice(*s)], reason(s, found, found=False)) for s in marked if s not in both)
    precision, recall = correct / found_count, correct / marked_count
    f1 = 2 * correct / (marked_count + found_count)
    print(
        f"{len(narratives)} narratives, {marked_count} phrases marked, {found_count} found, {correct} equal"
    )
    print(f"precision {precision:.4f}  recall {recall:.4f}  F1 {f1:.4f}")
    print(f"{1000 * seconds / len(narratives):.1f} ms of processor time per narrative")
    for (text, why), count in mistakes.most_common(SHOWN_MISTAKES):
        print(f"{count:4d}  {why:24s} {text}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_ROOT)
