"""A caption with its noun phrases, and the same caption for the mirrored image."""

import re
from dataclasses import dataclass, replace

from ppmn.data.narratives import AnnotatedPhrase
from ppmn.synthetic.wording import NounPhrase, Piece

_WORD = re.compile(r"[A-Za-z]+")
_SIDE = re.compile(r"left|right|Left|Right|LEFT|RIGHT")
_NO_SIDE = re.compile(
    r"(?:b|c|f|w|al|up|out|copy|forth|birth)(?:left|right)|(?:left|right)(?:over|eous|ful)", re.I
)
_DIRECTLY = re.compile(r"\W+(?:next to|beside|behind|in front of)\b", re.I)  # "right behind" is no side
_PLACED = re.compile(
    r"\b(?:the|on|to|at|far|top|bottom|upper|lower|front|back|middle|center|centre|from|very|most)\W+$", re.I
)
_CLOCK = re.compile(r"\b(1[012]|[1-9]|[a-z]+)(?=\s*o\s?'?\s?clock\b)")
_HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
_ORDINAL = re.compile(
    r"\b(?:first|second|third|fourth|fifth|sixth|last|\d+(?:st|nd|rd|th)|number|\d+|clockwise)\b", re.I
)


@dataclass(frozen=True)
class GeneratedCaption:
    """A caption and all its noun phrases, grounded or not."""

    caption: str
    phrases: tuple[AnnotatedPhrase, ...]


def swap_sides(text: str) -> str:
    """Exchange left and right, also in `leftmost`, `left-hand` and `9 o'clock`; twice gives the same text."""
    end, parts = 0, []
    for start, stop, other in _swaps(text):
        parts += [text[end:start], other]
        end = stop
    return "".join(parts) + text[end:]


def mirror_caption(caption: GeneratedCaption) -> GeneratedCaption:
    """The caption for the mirrored image: left and right exchanged, the spans of the phrases moved."""
    swaps = _swaps(caption.caption)

    def moved(position: int) -> int:
        return position + sum(len(other) - (stop - start) for start, stop, other in swaps if stop <= position)

    phrases = (replace(p, start=moved(p.start), end=moved(p.end)) for p in caption.phrases)
    return GeneratedCaption(swap_sides(caption.caption), tuple(phrases))


def counts_from_a_side(text: str) -> bool:
    """Whether the text may count from a side without saying which: `third donut`, `number 4`."""
    return bool(_ORDINAL.search(text)) and not _SIDE.search(text)


def render(pieces: list[Piece], *, raw: bool = False) -> GeneratedCaption:
    """Join pieces to a caption with the span of each noun phrase; `raw` keeps the case of all letters."""
    caption, phrases = "", []
    for piece in pieces:
        text = piece.text if isinstance(piece, NounPhrase) else piece
        if caption and not re.match(r"[.,]", text):
            caption += " "
        if not raw and (not caption or caption.endswith(". ")):
            text = text[0].upper() + text[1:]
        if isinstance(piece, NounPhrase):
            end = len(caption) + len(text)
            phrases.append(AnnotatedPhrase(len(caption), end, piece.ids, piece.isthing, piece.absent))
        caption += text
    return GeneratedCaption(caption, tuple(phrases))


def _swaps(text: str) -> list[tuple[int, int, str]]:
    """Start, end and replacement of every word or part of a word that names a side, in order."""
    found = []
    for word in _WORD.finditer(text):
        if _NO_SIDE.match(word.group()):
            continue
        directly = _DIRECTLY.match(text, word.end()) and not _PLACED.search(text, 0, word.start())
        if len(word.group()) <= len("right") and directly:
            continue
        for side in _SIDE.finditer(text, word.start(), word.end()):
            found.append((side.start(), side.end(), _other_side(side.group())))
    for hour in _CLOCK.finditer(text):
        if other := _mirrored_hour(hour[1]):
            found.append((hour.start(1), hour.end(1), other))
    return sorted(found)


def _other_side(word: str) -> str:
    other = "left" if word.lower() == "right" else "right"
    if word.isupper():
        return other.upper()
    return other.capitalize() if word[0].isupper() else other


def _mirrored_hour(hour: str) -> str:
    """`9` -> `3`, `eleven` -> `one`; nothing for what is no hour, or stays."""
    if hour.isdecimal():
        return str(12 - int(hour)) if int(hour) != 12 else ""
    return _HOURS[11 - _HOURS.index(hour) - 1] if hour in _HOURS else ""
