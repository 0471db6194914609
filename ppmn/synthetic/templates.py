"""The tables of the narrator, from `templates.json`: groups of categories, and templates of sentences.

In a template `[...]` is a noun phrase without a mask, `[F]` the noun for the image, `@` an earlier noun.
"""

from pathlib import Path
from typing import Any

from ppmn.files import read_json

TEMPLATES: dict[str, Any] = read_json(Path(__file__).with_name("templates.json"))


def _group(*names: str) -> frozenset[str]:
    return frozenset(category for name in names for category in TEMPLATES[name])


PEOPLE, ANIMALS, VEHICLES = _group("people"), _group("animals"), _group("vehicles")
USUALLY_SINGLE = _group("usually_single")  # mostly one per image
OUTDOORS = _group("outdoors")  # show that an image was taken outdoors
BACKGROUND = _group("background")  # mostly behind the rest
MAY_BE_BLACK = _group("may_be_black")  # the only stuff that is called black: other stuff is dark from shade
GROUND, SEATS, WATER = _group("ground"), _group("seats"), _group("water")
RIDDEN, HELD = _group("ridden"), _group("held")
SURFACES = _group("surfaces", "ground")
WOODEN = _group("wooden")  # called wooden where they are brown
TALL = _group("tall")
COLLECTIVE_NOUNS: dict[str, str] = TEMPLATES["collective_nouns"]  # herd of sheep
ROLES: dict[str, list[str]] = TEMPLATES["roles"]  # of a person with that thing
GARMENTS: list[str] = TEMPLATES["garments"]
ACCESSORIES: list[str] = TEMPLATES["accessories"]
PARTS: dict[str, list[str]] = TEMPLATES["parts"]
IMAGE_NOUNS: list[str] = TEMPLATES["image_nouns"]
SENTENCE_VERBS: list[str] = TEMPLATES["verbs"]
OPENINGS: list[str] = TEMPLATES["openings"]
CONTINUATIONS: list[str] = TEMPLATES["continuations"]
PLACE_PHRASES: dict[str, list[str]] = TEMPLATES["places"]
ASIDES: list[str] = TEMPLATES["asides"]  # `~`: only outdoors
SECOND_MENTIONS: list[str] = TEMPLATES["second_mentions"]
UNGROUNDED: list[str] = TEMPLATES["ungrounded"]
