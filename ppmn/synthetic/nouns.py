"""Nouns for categories: `category_nouns.txt`, fitted to the categories that one data set lists."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from ppmn.data.panoptic import Category
from ppmn.synthetic.templates import IRREGULAR_PLURALS, read_table


class NounForm(StrEnum):
    """Whether a noun means one thing, several, or something that is not counted."""

    SINGULAR = "singular"
    PLURAL = "plural"
    MASS = "mass"


@dataclass(frozen=True)
class Word:
    """A noun, its form, and how often it is used relative to others."""

    text: str
    form: NounForm
    weight: float = 1.0

    @property
    def lemma(self) -> str:
        return singular(self.text)


@dataclass(frozen=True)
class Hypernym:
    """Words for several categories; the data set must annotate `needs`, the image must not have `unless`."""

    words: tuple[Word, ...]
    members: frozenset[str]
    needs: frozenset[str]
    unless: frozenset[str]


def plural(text: str) -> str:
    """`wine glass` -> `wine glasses`."""
    for many, one in IRREGULAR_PLURALS.items():
        if text == one:
            return many
    if re.search(r"(s|x|z|ch|sh)$", text):
        return text + "es"
    return text[:-1] + "ies" if re.search(r"[^aeiou]y$", text) else text + "s"


@cache
def singular(text: str) -> str:
    """`wine glasses` -> `wine glass`; a singular is not changed."""
    head, _, last = text.rpartition(" ")
    if text in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[text]
    if last in IRREGULAR_PLURALS:
        last = IRREGULAR_PLURALS[last]
    elif re.search(r"(ss|x|z|ch|sh)es$", last) or last == "buses":
        last = last[:-2]
    elif re.search(r"[^aeiou]ies$", last):
        last = last[:-3] + "y"
    elif re.search(r"[^su]s$", last):
        last = last[:-1]
    return f"{head} {last}".strip()


def _words(column: str, form: NounForm) -> list[Word]:
    found = []
    for entry in column.split():
        text, _, weight = entry.partition("*")
        if text != "-":
            found.append(Word(text.replace("_", " "), form, float(weight or 1)))
    return found


def _forms(columns: str) -> tuple[Word, ...]:
    """`singular | plural | mass`; without a plural column, the plurals of the singular words."""
    singular_column, plural_column, mass_column = [*columns.split("|"), "", ""][:3]
    singulars = _words(singular_column, NounForm.SINGULAR)
    plurals = _words(plural_column, NounForm.PLURAL)
    if not plural_column.strip():
        plurals = [Word(plural(w.text), NounForm.PLURAL, w.weight) for w in singulars]
    return (*singulars, *plurals, *_words(mass_column, NounForm.MASS))


@cache
def _tables() -> tuple[dict[str, tuple[Word, ...]], tuple[Hypernym, ...]]:
    nouns, hypernyms = {}, []
    for name, rest in read_table("category_nouns.txt"):
        if name.startswith("@"):
            columns, members, needs, unless = re.fullmatch(  # type: ignore[union-attr]
                r"(.*?) of (.*?) needs (.*?)(?: unless (.*))?", rest
            ).groups("")
            sets = [frozenset(w.replace("_", " ") for w in s.split()) for s in (members, needs, unless)]
            hypernyms.append(Hypernym(_forms(columns), *sets))
        else:
            nouns[name] = _forms(rest)
    return nouns, tuple(hypernyms)


def base_name(name: str) -> str:
    """The name of a category as the table has it: `sky-other-merged` -> `sky`."""
    name = name.lower().strip()
    while name not in _tables()[0] and (cut := re.sub(r"-(merged|other|stuff)$", "", name)) != name:
        name = cut
    return name if name in _tables()[0] else re.sub(r"[-_\s]+", " ", name)


def _words_of(category: Category) -> tuple[Word, ...]:
    listed = _tables()[0].get(base_name(category.name))
    if listed:
        return listed
    names = [base_name(category.name), *(s.lower() for s in category.synonyms)]
    return _forms(" ".join(n.replace(" ", "_") for n in names) + ("" if category.isthing else " | -"))


class Lexicon:
    """The nouns for the categories of one data set, by category id, and its hypernyms.

    A hypernym is kept where the data set annotates all the categories that it needs.
    """

    def __init__(self, categories: Mapping[int, Category]) -> None:
        self.categories = dict(categories)
        self.words = {c.id: _words_of(c) for c in categories.values()}
        self.names = {c.id: base_name(c.name) for c in categories.values()}
        annotated = set(self.names.values())
        self.hypernyms = tuple(hypernym for hypernym in _tables()[1] if hypernym.needs <= annotated)
        self._by_lemma: dict[str, set[int]] = defaultdict(set)
        for id, words in self.words.items():
            for word in words:
                self._by_lemma[word.lemma].add(id)

    def category_ids(self, word: Word) -> set[int]:
        """The categories that a word may mean, hypernyms apart."""
        return self._by_lemma.get(word.lemma, set())

    def hypernym_lemmas(self, names: set[str]) -> set[str]:
        """The hypernyms of categories, also those that this data set does not use."""
        return {w.lemma for h in _tables()[1] if h.members & names for w in h.words}

    def covers(self, text: str) -> bool:
        """Whether a noun may mean something that this data set annotates."""
        lemma = singular(text)
        return lemma in self._by_lemma or any(lemma == w.lemma for h in self.hypernyms for w in h.words)
