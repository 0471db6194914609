"""The tables of the narrator and of drawn scenes.

`templates.json` has groups of categories by name: `usually_single` are mostly one per image, `outdoors` show
that an image was taken outdoors, `background` is mostly behind the rest, `may_be_black` is the only stuff
that is called black (other stuff is dark from shade), `wooden` is called so where it is brown, `vivid` are
colors that are plain to see. And it has templates of sentences: `[...]` is a noun phrase without a mask,
`[F]` the noun for the image, `@` an earlier noun, and `~` begins what is said only outdoors.
"""

from pathlib import Path

from ppmn.files import read_json

_TABLES = read_json(Path(__file__).with_name("templates.json"))
GROUPS = {name: frozenset[str](members) for name, members in _TABLES["groups"].items()}
TEMPLATES: dict[str, list[str]] = _TABLES["templates"]
PLACES: dict[str, list[str]] = _TABLES["places"]
PARTS: dict[str, list[str]] = _TABLES["parts"]
ROLES: dict[str, list[str]] = _TABLES["roles"]  # of a person with that thing
CONFUSABLE: list[list[str]] = _TABLES["confusable"]  # categories that are taken for each other
DISTINCTIONS: dict[str, list[str]] = _TABLES["distinctions"]  # words before | after a noun
COLLECTIVE_NOUNS: dict[str, str] = _TABLES["collective_nouns"]  # herd of sheep
IRREGULAR_PLURALS: dict[str, str] = _TABLES["irregular_plurals"]


def read_table(name: str) -> list[list[str]]:
    """The lines `key = value` of a file in this folder; `#` begins a comment."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line.split(" = ", 1) for line in lines if " = " in line and not line.startswith("#")]
