"""Predicted masks as JSON lines: any system can write them, and all are measured in the same way.

One line per phrase: {"image_id": 139, "narrative_index": 0, "phrase_index": 2,
"rle": {"size": [426, 640], "counts": "..."}, "score": 0.87}; and "source" where several sources are measured.
docs/benchmark.md says what the indices count.
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppmn.data.narratives import AnnotatedPhrase, Narrative
from ppmn.errors import InputError
from ppmn.evaluation.metrics import PhraseKey, Protocol
from ppmn.files import replacing
from ppmn.images import decode_rle, encode_rle
from ppmn.types import Mask

_log = logging.getLogger(__name__)

Answers = Callable[[str, Narrative], Iterable[tuple[Mask | None, float]]]  # a mask and a score per phrase


@dataclass(frozen=True)
class Prediction:
    """One phrase's mask as COCO's compressed RLE, and its score."""

    size: tuple[int, int]
    counts: str
    score: float

    @classmethod
    def of(cls, mask: Mask, score: float) -> "Prediction":
        return cls(mask.shape, encode_rle(mask)["counts"], score)

    def mask(self) -> Mask:
        return decode_rle({"size": list(self.size), "counts": self.counts})


def write_predictions(predictions: Mapping[PhraseKey, Prediction], file: Path) -> None:
    """Write one line per phrase, in the order of the keys."""
    with replacing(file) as part, part.open("w", encoding="utf-8") as lines:
        for key, prediction in sorted(predictions.items(), key=lambda item: item[0]):
            lines.write(json.dumps(_line(key, prediction)) + "\n")


def read_predictions(file: Path, sources: Mapping[str, Sequence[Narrative]]) -> dict[PhraseKey, Prediction]:
    """Predictions of the measurable phrases of the sources; lines of other phrases are counted and logged."""
    narratives = {(s, n.index): n for s, rows in sources.items() for n in rows}
    predictions: dict[PhraseKey, Prediction] = {}
    others = 0
    for number, text in _lines(file):
        try:
            key, prediction = _parse(text, list(sources))
            narrative = narratives.get((key.source, key.narrative))
            if narrative is None or not _fits(key, prediction, narrative):
                others += 1
                continue
            if key in predictions:
                raise InputError(f"narrative {key.narrative} has a second prediction of phrase {key.phrase}")
        except InputError as error:
            raise InputError(f"{file} line {number}: {error}") from None
        predictions[key] = prediction
    if others and not predictions:
        raise InputError(
            f"{file}: none of its {others} lines is of a phrase with a ground truth in {', '.join(sources)}"
        )
    if others:
        _log.warning(f"{others:,} lines of {file} are of phrases with no ground truth")
    return predictions


def file_answers(predictions: Mapping[PhraseKey, Prediction]) -> Answers:
    """Answers from a file; None for a phrase without a prediction."""

    def answer(source: str, narrative: Narrative) -> Iterator[tuple[Mask | None, float]]:
        for key in measurable(source, narrative):
            found = predictions.get(key)
            yield (found.mask(), found.score) if found else (None, 0.0)

    return answer


def measurable(
    source: str, narrative: Narrative, protocol: Protocol = "full"
) -> dict[PhraseKey, AnnotatedPhrase]:
    """The phrases with a ground truth, numbered among all noun phrases of their narrative.

    These are the grounded ones, and in protocol `full` those annotated as absent from the image: the
    authors' data has none of the latter.
    """
    return {
        PhraseKey(source, narrative.image.id, narrative.index, i): phrase
        for i, phrase in enumerate(narrative.phrases)
        if phrase.segment_ids or (phrase.absent and protocol == "full")
    }


def _line(key: PhraseKey, prediction: Prediction) -> dict[str, Any]:
    return {
        "source": key.source,
        "image_id": key.image,
        "narrative_index": key.narrative,
        "phrase_index": key.phrase,
        "rle": {"size": list(prediction.size), "counts": prediction.counts},
        "score": round(prediction.score, 6),
    }


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        with file.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                if text.strip():
                    yield number, text
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not a readable file of JSON lines ({error})") from error


def _parse(text: str, sources: list[str]) -> tuple[PhraseKey, Prediction]:
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise InputError(f"not JSON ({error})") from None
    if not isinstance(raw, dict):
        raise InputError("not a JSON object")
    source = raw.get("source", sources[0] if len(sources) == 1 else None)
    if source not in sources:
        raise InputError(f"source is {source!r}, must be one of {', '.join(sources)}")
    image, narrative, phrase = (_number(raw, n) for n in ("image_id", "narrative_index", "phrase_index"))
    score = raw.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise InputError(f"score is {score!r}, must be a finite number")
    size, counts = _rle(raw.get("rle"))
    return PhraseKey(source, image, narrative, phrase), Prediction(size, counts, float(score))


def _number(raw: Mapping[str, Any], name: str) -> int:
    value = raw.get(name)
    if isinstance(value, str) and value.isdecimal():  # the benchmark writes image ids as strings
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{name} is {value!r}, must be a whole number of 0 or more")
    return value


def _rle(raw: Any) -> tuple[tuple[int, int], str]:
    size = raw.get("size") if isinstance(raw, dict) else None
    counts = raw.get("counts") if isinstance(raw, dict) else None
    if not (isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size)):
        raise InputError(f"rle size is {size!r}, must be [height, width]")
    if not isinstance(counts, str) or not counts.isascii():
        raise InputError(f"rle counts is {type(counts).__name__}, must be COCO's compressed string")
    covered = _covered(counts)
    if covered != size[0] * size[1]:
        raise InputError(f"rle counts cover {covered} pixels, not the {size[0]} x {size[1]} of its size")
    return (size[0], size[1]), counts


def _covered(counts: str) -> int:
    """How many pixels a compressed RLE describes: pycocotools leaves the others undefined."""
    runs: list[int] = []
    value = shift = 0
    for character in counts.encode("ascii"):
        digit = character - 48
        if not 0 <= digit < 64:
            raise InputError(f"rle counts holds {chr(character)!r}, which is no character of COCO's RLE")
        value |= (digit & 31) << shift
        shift += 5
        if digit & 32:  # more follows
            continue
        if digit & 16:  # negative
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
        if runs[-1] < 0:
            raise InputError(f"rle counts holds a run of {runs[-1]} pixels")
    return sum(runs) if shift == 0 else -1


def _fits(key: PhraseKey, prediction: Prediction, narrative: Narrative) -> bool:
    """Whether the prediction is of a measurable phrase; one that does not fit the image is refused."""
    image = narrative.image
    if key.image != image.id:
        raise InputError(f"narrative {key.narrative} is of image {image.id}, not of {key.image}")
    if key.phrase >= len(narrative.phrases):
        raise InputError(
            f"phrase_index is {key.phrase}, but narrative {key.narrative} has only {len(narrative.phrases)} "
            "noun phrases, counted from 0"
        )
    if prediction.size != (image.height, image.width):
        have, need = prediction.size, (image.height, image.width)
        raise InputError(
            f"rle size {have[0]} x {have[1]} does not fit image {image.id} of {need[0]} x {need[1]} pixels"
        )
    return key in measurable(key.source, narrative)
