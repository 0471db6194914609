"""How people call a category: `category_nouns.txt` read, fitted to the categories one source lists."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ppmn.data.panoptic import Category

ONE, MANY, MASS = "one", "many", "mass"
IRREGULAR = {
    "people": "person", "persons": "person", "men": "man", "women": "woman", "children": "child",
    "knives": "knife", "mice": "mouse", "shelves": "shelf", "bookshelves": "bookshelf", "sheep": "sheep",
    "pairs of scissors": "scissors", "pair of scissors": "scissors", "chests of drawers": "chest of drawers",
}  # fmt: skip


@dataclass(frozen=True)
class Word:
    """A noun as it is said: `form` tells one thing, many things, or what is not counted."""

    text: str
    form: str
    weight: float = 1.0

    @property
    def lemma(self) -> str:
        return singular(self.text)


@dataclass(frozen=True)
class Wider:
    """A word for several categories at once; exact only under `needs` and `unless`."""

    words: tuple[Word, ...]
    members: frozenset[str]
    needs: frozenset[str]
    unless: frozenset[str]


def plural(text: str) -> str:
    """`wine glass` -> `wine glasses`."""
    for many, one in IRREGULAR.items():
        if text == one and many != "persons":
            return many
    if re.search(r"(s|x|z|ch|sh)$", text):
        return text + "es"
    return text[:-1] + "ies" if re.search(r"[^aeiou]y$", text) else text + "s"


@cache
def singular(text: str) -> str:
    """`wine glasses` -> `wine glass`; a singular stays as it is."""
    head, _, last = text.rpartition(" ")
    if text in IRREGULAR:
        return IRREGULAR[text]
    if last in IRREGULAR:
        last = IRREGULAR[last]
    elif re.search(r"(ss|x|z|ch|sh)es$", last) or last == "buses":
        last = last[:-2]
    elif re.search(r"[^aeiou]ies$", last):
        last = last[:-3] + "y"
    elif re.search(r"[^su]s$", last):
        last = last[:-1]
    return f"{head} {last}".strip()


def _words(column: str, form: str) -> list[Word]:
    found = []
    for entry in column.split():
        text, _, weight = entry.partition("*")
        if text != "-":
            found.append(Word(text.replace("_", " "), form, float(weight or 1)))
    return found


def _forms(columns: str) -> tuple[Word, ...]:
    """`singular | plural | mass`; where no plural is given, the singular words in the plural."""
    one, many, mass = [*columns.split("|"), "", ""][:3]
    ones, manys = _words(one, ONE), _words(many, MANY)
    if not many.strip():
        manys = [Word(plural(w.text), MANY, w.weight) for w in ones]
    return (*ones, *manys, *_words(mass, MASS))


@cache
def _tables() -> tuple[dict[str, tuple[Word, ...]], tuple[Wider, ...]]:
    names, wider = {}, []
    for line in Path(__file__).with_name("category_nouns.txt").read_text(encoding="utf-8").splitlines():
        name, equals, rest = line.partition(" = ")
        if not equals or name.startswith("#"):
            continue
        if name.startswith("@"):
            columns, members, needs, unless = re.fullmatch(  # type: ignore[union-attr]
                r"(.*?) of (.*?) needs (.*?)(?: unless (.*))?", rest
            ).groups("")
            sets = [frozenset(w.replace("_", " ") for w in s.split()) for s in (members, needs, unless)]
            wider.append(Wider(_forms(columns), *sets))
        else:
            names[name] = _forms(rest)
    return names, tuple(wider)


def plain(name: str) -> str:
    """A category's name as the tables know it: `sky-other-merged` -> `sky`."""
    name = name.lower().strip()
    while name not in _tables()[0] and (cut := re.sub(r"-(merged|other|stuff)$", "", name)) != name:
        name = cut
    return name if name in _tables()[0] else re.sub(r"[-_\s]+", " ", name)


def _own_words(category: Category) -> tuple[Word, ...]:
    known = _tables()[0].get(plain(category.name))
    if known:
        return known
    names = [plain(category.name), *(s.lower() for s in category.synonyms)]
    return _forms(" ".join(n.replace(" ", "_") for n in names) + ("" if category.isthing else " | -"))


class Lexicon:
    """The words for the categories of one source, and what each of them covers there.

    `words[id]` are a category's own words, `wider` the words for several categories whose
    members this source annotates fully. `covers(word)` is every category the word is said of.
    """

    def __init__(self, categories: Mapping[int, Category]) -> None:
        self.categories = dict(categories)
        self.words = {c.id: _own_words(c) for c in categories.values()}
        self.plain = {c.id: plain(c.name) for c in categories.values()}
        by_name: dict[str, set[int]] = defaultdict(set)
        for id, name in self.plain.items():
            by_name[name].add(id)

        def of(names: Iterable[str]) -> frozenset[int]:
            return frozenset(i for n in names for i in by_name.get(n, ()))

        self.wider = tuple(
            (w.words, of(w.members), of(w.unless)) for w in _tables()[1] if all(n in by_name for n in w.needs)
        )
        self._covers: dict[str, set[int]] = defaultdict(set)
        for id, words in self.words.items():
            for word in words:
                self._covers[word.lemma].add(id)

    def covers(self, word: Word) -> set[int]:
        """Categories of the source the word may mean; a wider word is met with its members."""
        return self._covers.get(word.lemma, set())

    def knows(self, text: str) -> bool:
        """Whether the noun could be meant as something annotated in this source."""
        lemma = singular(text)
        return lemma in self._covers or any(lemma == w.lemma for ws, _, _ in self.wider for w in ws)
