"""The wording of a mention: articles, amounts, colours, and the tables of the manner."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ppmn.synthetic.nouns import ONE, Word
from ppmn.synthetic.regions import Region

T = TypeVar("T")
SKIN = ("brown", "pink", "orange")  # not said of what people wear
DULL = ("black", "grey", "brown")  # the shade makes them; people say them less
NUMBERS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
MANNER: dict[str, Any] = json.loads(Path(__file__).with_name("templates.json").read_text(encoding="utf-8"))


def _kinds(*names: str) -> frozenset[str]:
    return frozenset(kind for name in names for kind in MANNER[name])


ALONE = _kinds("alone")  # mostly one in a photo
ANIMALS, PEOPLE, VEHICLES = _kinds("animals"), _kinds("people"), _kinds("vehicles")
OUTDOORS = _kinds("outdoors")  # what shows that a photo is taken outside
BACK = _kinds("back")  # mostly behind the rest
DARK = _kinds("dark")  # the only stuff called black: the rest is mostly in the shade
GROUND, SEATS, WATERS = _kinds("ground"), _kinds("seats"), _kinds("waters")
RIDDEN, HELD = _kinds("ridden"), _kinds("held")
SURFACES = _kinds("surfaces", "ground")
WOODEN = _kinds("wooden")  # brown ones are called wooden
HERDS: dict[str, str] = MANNER["herds"]
GROUPS = {"group", "couple", "number", *HERDS.values()}
ROLES: dict[str, list[str]] = MANNER["roles"]
TALL = _kinds("tall")
GARMENTS, WORN, PARTS = MANNER["garments"], MANNER["worn"], MANNER["parts"]


@dataclass(frozen=True)
class Noun:
    """A noun phrase: what it points to, nothing (`ids` empty), or what is not there (`absent`)."""

    text: str
    ids: tuple[int, ...] = ()
    isthing: bool = False
    absent: bool = False


Piece = str | Noun


@dataclass(frozen=True)
class Mention:
    """Words about some segments; `must` is a place without which they would not be true."""

    pieces: tuple[Piece, ...]
    plural: bool
    places: frozenset[str] = frozenset()
    must: str = ""
    back: bool = False

    @property
    def nouns(self) -> list[Noun]:
        return [p for p in self.pieces if isinstance(p, Noun)]


def unfold(template: str) -> tuple[Piece, ...]:
    """`with [leaves] on it` -> pieces; brackets hold nouns that point to nothing."""
    parts = template.replace("]", "[").split("[")
    pieces = [Noun(p) if n % 2 else p.strip() for n, p in enumerate(parts)]
    return tuple(p for p in pieces if p)


@dataclass
class Wording:
    """Chance, and how a noun is dressed by it."""

    rng: np.random.Generator

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one_of(self, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        if weights is None:
            return options[int(self.rng.random() * len(options))]
        return options[
            int(np.searchsorted(np.cumsum(weights), self.rng.random() * sum(weights), side="right"))
        ]

    def article(self, text: str, word: Word, stuff: bool = False) -> tuple[str, ...]:
        """What stands before the noun phrase and is no part of it."""
        first = text.split(maxsplit=1)[0]
        if first in GROUPS:
            return ("a",)
        if first in (*NUMBERS, "some", "many", "another", "other"):
            return ()
        if first == "few":
            return ("a",) if self.chance(0.45) else ()
        if word.form == ONE:
            a = "an" if first[0] in "aeiou" else "a"
            return self.one_of(((a,), ("the",), ()), (0.35, 0.45, 0.2) if stuff else (0.8, 0.13, 0.07))
        return self.one_of(((), ("the",)), (0.65, 0.35))

    def amount(self, n: int, name: str) -> str:
        """A number word that equals n, or a vague one that n bears out."""
        options = [("", 4.0), ("few ", 2.5 if n <= 8 else 0), ("some ", 2)]
        options += [(f"{NUMBERS[n]} ", 5.0 if n <= 4 else 1.0)] if n < len(NUMBERS) else []
        options += [("couple of ", 0.5)] if n == 2 else [("group of ", 1.5)]
        options += [(f"{HERDS[name]} of ", 1.0)] if n >= 5 and name in HERDS else []
        options += [("many ", 2), ("number of ", 0.3)] if n >= 7 else []
        return self.one_of([o for o, _ in options], [w for _, w in options])

    def vague(self) -> str:
        """Before a plural of unknown number."""
        return self.one_of(
            ("", "few ", "some ", "many ", "group of ", "number of "), (7, 1, 1, 0.3, 0.3, 0.05)
        )

    def coloured(self, those: list[Region], name: str, text: str) -> str:
        """The noun with a colour or a size, now and then, if all of them have that one."""
        colour = those[0].colour
        if name in PEOPLE or "wooden" in text:
            return text
        if not colour and len(those) == 1 and those[0].two_colours and self.chance(0.3):
            return " and ".join(those[0].two_colours) + f" {text}"
        dim = colour == "black" and not (those[0].category.isthing or name in DARK)
        said = 0.2 if colour in DULL else 0.5
        if colour and not dim and all(r.colour == colour for r in those) and self.chance(said):
            if colour == "brown" and name in WOODEN and self.chance(0.75):
                return f"wooden {text}"
            return self.tinted(colour, text)
        fits = self.adjectives(those, name)
        return f"{self.one_of(fits)} {text}" if fits and self.chance(0.2) else text

    def adjectives(self, those: list[Region], name: str) -> list[str]:
        """Sizes and states that the masks and the colour bear out."""
        height = min(r.box[3] - r.box[1] for r in those)
        if name == "sky":
            return {"blue": ["clear", "clear blue"], "grey": ["cloudy"], "white": ["cloudy"]}.get(
                those[0].colour, []
            )
        if name in TALL:
            return ["tall", "big", "huge"] if height > 0.5 else []
        if those[0].category.isthing and len(those) == 1:
            return (
                ["big", "large"]
                if those[0].share > 0.25
                else ["small", "little"]
                if those[0].share < 0.004
                else []
            )
        return []

    def tinted(self, colour: str, text: str) -> str:
        return f"{colour} color {text}" if self.chance(0.12) else f"{colour} {text}"
