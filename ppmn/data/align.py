"""Where the utterances of a narrative stand in its caption.

The benchmark cuts a caption into utterances and re-tokenises them on the way ("isn't" becomes
"is n't", spaces double, words change), so their offsets are found anew: by characters where the
texts agree but for spaces, case and accents, and by differences where they do not.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import numpy as np

QUOTES = str.maketrans({"’": "'", "‘": "'", "`": "'", "“": '"', "”": '"', "–": "-", "—": "-"})
WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Place:
    """Characters `start` to `end` of the caption; `exact` where they are the utterance's own."""

    start: int
    end: int
    exact: bool = True


@dataclass
class Letters:
    """A text without spaces, case and accents, and where each letter stood in it."""

    text: str = ""
    offsets: list[int] = field(default_factory=list)


def letters(text: str) -> Letters:
    pairs = [
        (letter, offset)
        for offset, character in enumerate(text.translate(QUOTES))
        for letter in _plain(character)
    ]
    return Letters("".join(letter for letter, _ in pairs), [offset for _, offset in pairs])


def _plain(character: str) -> str:
    if character.isascii():
        return character.lower().strip()
    parts = unicodedata.normalize("NFKD", character).casefold()
    return "".join(p for p in parts if not unicodedata.combining(p) and not p.isspace())


def align(caption: str, utterances: Sequence[str]) -> list[Place | None]:
    """The place of every utterance in the caption; None where nothing of it is there."""
    whole = letters(caption)
    parts = [letters(u) for u in utterances]
    if whole.text == "".join(p.text for p in parts):
        where: list[int] = list(range(len(whole.text)))
        guesses: dict[int, tuple[int, int]] = {}
    else:
        where, guesses = _differences(whole, "".join(p.text for p in parts), _words(utterances), caption)
    places, first = [], 0
    for part in parts:
        last = first + len(part.text)
        places.append(_place(range(first, last), where, guesses, whole.offsets))
        first = last
    return places


def _place(
    own: range, where: list[int], guesses: dict[int, tuple[int, int]], offsets: list[int]
) -> Place | None:
    """From the letters of one utterance to characters of the caption."""
    found = [where[i] for i in own if where[i] >= 0]
    spans = [(offsets[j], offsets[j] + 1) for j in found] + [guesses[i] for i in own if i in guesses]
    if not spans:
        return None
    exact = len(found) == len(own) and found[-1] - found[0] == len(own) - 1
    return Place(min(s for s, _ in spans), max(e for _, e in spans), exact)


def _words(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Words without case and accents, each with the number of the text it is in."""
    found = ((letters(m.group()).text, n) for n, text in enumerate(texts) for m in WORD.finditer(text))
    return [(word, n) for word, n in found if word]


def _differences(
    whole: Letters, spoken: str, words: list[tuple[str, int]], caption: str
) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """For every spoken letter its letter in the caption or -1, and for changed words the likely place."""
    mine = [word for word, _ in words]
    theirs = [word for word, _ in _words([caption])]
    my_starts, their_starts = _starts(mine), _starts(theirs)
    where = [-1] * len(spoken)
    guesses: dict[int, tuple[int, int]] = {}
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        first, last = my_starts[a0], my_starts[a1]
        if kind == "equal" or (kind == "replace" and "".join(mine[a0:a1]) == "".join(theirs[b0:b1])):
            where[first:last] = range(their_starts[b0], their_starts[b1])
        elif kind == "replace":
            for a, (c0, c1) in _pairs(words[a0:a1], theirs[b0:b1]).items():
                start = whole.offsets[their_starts[b0 + c0]]
                end = whole.offsets[their_starts[b0 + c1] - 1] + 1
                for i in range(my_starts[a0 + a], my_starts[a0 + a + 1]):
                    guesses[i] = (start, end)
    return where, guesses


def _starts(words: Sequence[str]) -> list[int]:
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word))
    return starts


def _pairs(mine: Sequence[tuple[str, int]], theirs: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Changed words: which words (from, to) of the caption stand where word `a` was spoken.

    As many words: one by one. All of one utterance: the whole stretch. Else the two most alike are
    paired, and so on to both sides of them.
    """
    alike = np.array(
        [[SequenceMatcher(None, word, t, autojunk=False).ratio() for t in theirs] for word, _ in mine]
    )

    def pair(a0: int, a1: int, b0: int, b1: int) -> dict[int, tuple[int, int]]:
        if a0 == a1 or b0 == b1:
            return {}
        if a1 - a0 == b1 - b0:
            return {a: (b, b + 1) for a, b in zip(range(a0, a1), range(b0, b1), strict=True)}
        if len({utterance for _, utterance in mine[a0:a1]}) == 1:
            return dict.fromkeys(range(a0, a1), (b0, b1))
        best = alike[a0:a1, b0:b1].argmax()
        a, b = a0 + int(best) // (b1 - b0), b0 + int(best) % (b1 - b0)
        return pair(a0, a, b0, b) | {a: (b, b + 1)} | pair(a + 1, a1, b + 1, b1)

    return pair(0, len(mine), 0, len(theirs))
