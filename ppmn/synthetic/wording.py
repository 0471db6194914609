"""The wording of a mention: random choices, articles, amounts, colors and adjectives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ppmn.synthetic.nouns import NounForm, Word
from ppmn.synthetic.regions import Region
from ppmn.synthetic.templates import COLLECTIVE_NOUNS, GROUPS

_Option = TypeVar("_Option")
_DULL = ("black", "grey", "brown")  # often an effect of shade, and named less often
_NUMBERS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COLLECTIVES = {"group", "couple", "number", *COLLECTIVE_NOUNS.values()}


@dataclass(frozen=True)
class NounPhrase:
    """A noun phrase with its segments, without any (`ids` empty), or for what is not there (`absent`)."""

    text: str
    ids: tuple[int, ...] = ()
    isthing: bool = False
    absent: bool = False


Piece = str | NounPhrase
Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class Mention:
    """Words about some segments; without `required_side` they would not single them out."""

    pieces: Pieces
    plural: bool
    sides: frozenset[str] = frozenset()
    required_side: str = ""
    background: bool = False

    @property
    def nouns(self) -> list[NounPhrase]:
        return [p for p in self.pieces if isinstance(p, NounPhrase)]


def parse_template(template: str) -> Pieces:
    """`with [leaves] on it` -> pieces; brackets hold noun phrases without a mask."""
    parts = template.replace("]", "[").split("[")
    pieces = [NounPhrase(p) if n % 2 else p.strip() for n, p in enumerate(parts)]
    return tuple(p for p in pieces if p)


def indefinite_article(text: str) -> str:
    """`a`, or `an` before a vowel."""
    return "an" if text[0] in "aeiou" else "a"


@dataclass
class Wording:
    """Random choices, and the words around a noun that depend on them."""

    rng: np.random.Generator

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return bool(self.rng.random() < p)

    def choose(self, options: Sequence[_Option], weights: Sequence[float] | None = None) -> _Option:
        """One of the options, with probabilities proportional to the weights."""
        if weights is None:
            return options[int(self.rng.random() * len(options))]
        drawn = self.rng.random() * sum(weights)
        return options[int(np.searchsorted(np.cumsum(weights), drawn, side="right"))]

    def article(self, text: str, word: Word, stuff: bool = False) -> tuple[str, ...]:
        """What comes before the noun phrase without being part of it."""
        first = text.split(maxsplit=1)[0]
        if first in _COLLECTIVES:
            return ("a",)
        if first in (*_NUMBERS, "some", "many", "another", "other", "both", "all"):
            return ()
        if first == "few":
            return ("a",) if self.chance(0.45) else ()
        if word.form == NounForm.SINGULAR:
            weights = (0.35, 0.45, 0.2) if stuff else (0.8, 0.13, 0.07)
            return self.choose(((indefinite_article(first),), ("the",), ()), weights)
        return self.choose(((), ("the",)), (0.65, 0.35))

    def amount(self, n: int, name: str) -> str:
        """The number word for n, or a vague amount that is true of n."""
        options = [("", 4.0), ("few ", 2.5 if n <= 8 else 0), ("some ", 2)]
        options += [(f"{_NUMBERS[n]} ", 5.0 if n <= 4 else 1.0)] if n < len(_NUMBERS) else []
        options += [("couple of ", 0.5)] if n == 2 else [("group of ", 1.5)]
        group = COLLECTIVE_NOUNS.get(name)
        options += [(f"{group} of ", 1.0)] if n >= 5 and group else []
        options += [("many ", 2), ("number of ", 0.3)] if n >= 7 else []
        return self.choose([o for o, _ in options], [w for _, w in options])

    def vague_amount(self) -> str:
        """An amount before a plural of unknown number."""
        return self.choose(
            ("", "few ", "some ", "many ", "group of ", "number of "), (7, 1, 1, 0.3, 0.3, 0.05)
        )

    def described(self, regions: list[Region], name: str, text: str) -> str:
        """The noun, sometimes with a color or an adjective that is true of all the regions."""
        color = regions[0].color
        if name in GROUPS["people"] or "wooden" in text:
            return text
        if not color and len(regions) == 1 and regions[0].two_colors and self.chance(0.3):
            return " and ".join(regions[0].two_colors) + f" {text}"
        stuff = not regions[0].category.isthing
        shade = color == "black" and stuff and name not in GROUPS["may_be_black"]
        probability = 0.2 if color in _DULL else 0.5
        if color and not shade and all(r.color == color for r in regions) and self.chance(probability):
            if color == "brown" and name in GROUPS["wooden"] and self.chance(0.75):
                return f"wooden {text}"
            return self.colored(color, text)
        options = self.adjectives(regions, name)
        return f"{self.choose(options)} {text}" if options and self.chance(0.2) else text

    def adjectives(self, regions: list[Region], name: str) -> list[str]:
        """Sizes and states that masks and colors show."""
        height = min(r.box[3] - r.box[1] for r in regions)
        if name == "sky":
            by_color = {"blue": ["clear", "clear blue"], "grey": ["cloudy"], "white": ["cloudy"]}
            return by_color.get(regions[0].color, [])
        if name in GROUPS["tall"]:
            return ["tall", "big", "huge"] if height > 0.5 else []
        if regions[0].category.isthing and len(regions) == 1:
            if regions[0].area_fraction > 0.25:
                return ["big", "large"]
            if regions[0].area_fraction < 0.004:
                return ["small", "little"]
        return []

    def colored(self, color: str, text: str) -> str:
        """`red car`, sometimes `red color car`."""
        return f"{color} color {text}" if self.chance(0.12) else f"{color} {text}"
