"""Where the utterances of a narrative are in its caption.

The benchmark cuts a caption into utterances and tokenizes them again ("isn't" becomes "is n't", spaces
double, words change), so their offsets have to be searched for: by characters where the texts agree
except for spaces, case and accents, and by a diff of words where they do not.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, pairwise

import numpy as np

from ppmn.types import Span

_QUOTES = str.maketrans({"’": "'", "‘": "'", "`": "'", "“": '"', "”": '"', "–": "-", "—": "-"})
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Match:
    """Characters `start` to `end` of the caption; `exact` where they equal the utterance."""

    start: int
    end: int
    exact: bool = True


def _letters(text: str) -> tuple[str, list[int]]:
    """A text without spaces, case and accents, and the offset of each letter in the original."""
    parts = [_normalized(character) for character in text.translate(_QUOTES)]
    return "".join(parts), [offset for offset, part in enumerate(parts) for _ in part]


def _normalized(character: str) -> str:
    if character.isascii():
        return character.lower().strip()
    parts = unicodedata.normalize("NFKD", character).casefold()
    return "".join(p for p in parts if not unicodedata.combining(p) and not p.isspace())


def align(caption: str, utterances: Sequence[str]) -> list[Match | None]:
    """The match of every utterance in the caption; None where nothing of it is there."""
    text, offsets = _letters(caption)
    parts = [_letters(utterance)[0] for utterance in utterances]
    positions, guesses = list(range(len(text))), dict[int, Span]()
    if text != "".join(parts):
        positions, guesses = _diff(offsets, _words(utterances), [word for word, _ in _words([caption])])
    return [_match(range(*ends), positions, guesses, offsets) for ends in pairwise(_starts(parts))]


def _match(
    letters: range, positions: list[int], guesses: dict[int, Span], offsets: list[int]
) -> Match | None:
    """From the letters of one utterance to characters of the caption."""
    found = [positions[i] for i in letters if positions[i] >= 0]
    spans = [(offsets[j], offsets[j] + 1) for j in found] + [guesses[i] for i in letters if i in guesses]
    if not spans:
        return None
    exact = len(found) == len(letters) and found[-1] - found[0] == len(letters) - 1
    return Match(min(s for s, _ in spans), max(e for _, e in spans), exact)


def _words(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Words without case and accents, each with the number of the text it is in."""
    found = ((_letters(m.group())[0], n) for n, text in enumerate(texts) for m in _WORD.finditer(text))
    return [(word, n) for word, n in found if word]


def _diff(
    offsets: list[int], words: list[tuple[str, int]], theirs: list[str]
) -> tuple[list[int], dict[int, Span]]:
    """For every spoken letter its letter in the caption or -1, and for changed words the likely span."""
    ours = [word for word, _ in words]
    our_starts, their_starts = _starts(ours), _starts(theirs)
    positions, guesses = [-1] * our_starts[-1], dict[int, Span]()
    for operation, a0, a1, b0, b1 in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        first, last = our_starts[a0], our_starts[a1]
        same_letters = "".join(ours[a0:a1]) == "".join(theirs[b0:b1])
        if operation == "equal" or (operation == "replace" and same_letters):
            positions[first:last] = range(their_starts[b0], their_starts[b1])
        elif operation == "replace":
            for a, (c0, c1) in _pairs(words[a0:a1], theirs[b0:b1]).items():
                span = offsets[their_starts[b0 + c0]], offsets[their_starts[b0 + c1] - 1] + 1
                guesses |= dict.fromkeys(range(our_starts[a0 + a], our_starts[a0 + a + 1]), span)
    return positions, guesses


def _starts(words: Sequence[str]) -> list[int]:
    return [0, *accumulate(map(len, words))]


def _pairs(ours: Sequence[tuple[str, int]], theirs: Sequence[str]) -> dict[int, Span]:
    """For each changed word its words (first, end) of the caption.

    Equal numbers of words are paired one by one. Words of one utterance get the whole stretch. Otherwise
    the two most similar words are paired, then the words on both sides of them in the same way.
    """
    similarity = np.array(
        [[SequenceMatcher(None, word, t, autojunk=False).ratio() for t in theirs] for word, _ in ours]
    )

    def pair(a0: int, a1: int, b0: int, b1: int) -> dict[int, Span]:
        if a0 == a1 or b0 == b1:
            return {}
        if a1 - a0 == b1 - b0:
            return {a: (b, b + 1) for a, b in zip(range(a0, a1), range(b0, b1), strict=True)}
        if len({utterance for _, utterance in ours[a0:a1]}) == 1:
            return dict.fromkeys(range(a0, a1), (b0, b1))
        best = similarity[a0:a1, b0:b1].argmax()
        a, b = a0 + int(best) // (b1 - b0), b0 + int(best) % (b1 - b0)
        return pair(a0, a, b0, b) | {a: (b, b + 1)} | pair(a + 1, a1, b + 1, b1)

    return pair(0, len(ours), 0, len(theirs))
