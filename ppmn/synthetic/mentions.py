"""Segments of a photo -> mentions: a noun with its article, number, colour and what is said of it."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from ppmn.data.panoptic import Category
from ppmn.synthetic.nouns import MANY, MASS, ONE, Lexicon, Word
from ppmn.synthetic.regions import COLOURS, Region
from ppmn.synthetic.wording import (
    ALONE,
    ANIMALS,
    BACK,
    GARMENTS,
    GROUND,
    HELD,
    MANNER,
    OUTDOORS,
    PARTS,
    PEOPLE,
    RIDDEN,
    ROLES,
    SEATS,
    SKIN,
    SURFACES,
    VEHICLES,
    WATERS,
    WORN,
    Mention,
    Noun,
    Piece,
    Wording,
    unfold,
)


@dataclass
class Mentioner:
    """What can truly be said of one photo's segments; remembers what it called whom."""

    lexicon: Lexicon
    regions: list[Region]
    rng: np.random.Generator
    exhaustive: bool
    called: dict[tuple[int, ...], Word] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wording = Wording(self.rng)
        self.chance, self.one_of = self.wording.chance, self.wording.one_of
        self.of: dict[int, list[Region]] = defaultdict(list)
        for region in self.regions:
            self.of[region.category.id].append(region)
        self.by_id = {r.id: r for r in self.regions}
        self.outdoors = any(self.name(r.category) in OUTDOORS for r in self.regions)

    # words
    def name(self, category: Category) -> str:
        return self.lexicon.plain[category.id]

    def reach(self, word: Word) -> list[Region]:
        """Every segment here that the word may be said of."""
        return [r for id in self.lexicon.covers(word) for r in self.of.get(id, ())]

    def word(self, category: Category, *forms: str) -> Word | None:
        """One of the category's words that no other category here shares."""
        fits = [
            w
            for w in self.lexicon.words[category.id]
            if w.form in forms and all(r.category.id == category.id for r in self.reach(w))
        ]
        return self.one_of(fits, [w.weight for w in fits]) if fits else None

    def role(self, region: Region) -> Word | None:
        """`surfer` for a person with a surfboard, now and then."""
        if self.name(region.category) != "person" or not self.chance(0.3):
            return None
        roles = [ROLES[name] for r in self.reachable(region) if (name := self.name(r.category)) in ROLES]
        return Word(self.one_of(self.one_of(roles)), ONE) if roles else None

    def reachable(self, person: Region) -> list[Region]:
        """What a person may hold or ride: its centre is within the person's box."""
        x0, y0, x1, y1 = person.box
        kinds = RIDDEN | HELD
        return [
            r for r in self.regions if x0 <= r.x <= x1 and y0 <= r.y <= y1 and self.name(r.category) in kinds
        ]

    # whole mentions
    def category(self, id: int) -> list[Mention]:
        """Mentions of a category's segments: one by one, some of them, or all at once."""
        here = self.of[id]
        stuff = not here[0].category.isthing
        if stuff or (len(here) == 1 and here[0].crowd):
            found = [self.unknown_number(here)]
        elif len(here) == 1:
            found = [self.single(here[0])]
        else:
            whole = min(0.15 + 0.1 * len(here), 0.75)
            ways = [self.singles, self.all_of, self.side_of]
            found = self.one_of(ways, [0.85 - whole, whole, 0.15])(here) or self.all_of(here)
        return [m for m in found if m]

    def unknown_number(self, here: list[Region]) -> Mention | None:
        """Stuff, or one segment for any number of things."""
        category = here[0].category
        one = 0.85 if self.name(category) in ALONE else 0.5
        forms = (ONE, MANY, MASS) if not category.isthing else (ONE if self.chance(one) else MANY, MASS)
        word = self.word(category, *forms) or self.word(category, ONE, MANY, MASS)
        if word is None:
            return None
        many = word.form == MANY
        text = (self.wording.vague() if many else "") + self.wording.coloured(
            here, self.name(category), word.text
        )
        return self.mention(text, here, word, many, self.extras(here[0]) if len(here) == 1 else ())

    def single(self, region: Region, how: str = "", must: str = "") -> Mention | None:
        word = self.called.get((region.id,)) or self.role(region) or self.word(region.category, ONE)
        if word is None:
            return None
        extras = self.extras(region)
        if how in COLOURS[1:] and self.name(region.category) in PEOPLE:
            text, extras = word.text, unfold(f"wearing a [{how} {self.one_of(GARMENTS)}]")
        elif how:
            text = self.wording.tinted(how, word.text) if how in COLOURS else f"{how} {word.text}"
        else:
            text = self.wording.coloured([region], self.name(region.category), word.text)
        return self.mention(text, [region], word, False, extras, must)

    def singles(self, here: list[Region]) -> list[Mention | None]:
        """The largest few one by one, each told from the rest by colour, place or size."""
        found: list[Mention | None] = []
        ranked = sorted(here, key=lambda r: -r.area)
        for n, region in enumerate(ranked[: int(self.rng.integers(1, 4))]):
            rivals = [r for r in here if r is not region]
            if region.crowd or region.area < 0.08 * ranked[0].area:
                continue
            places = sorted(p for p in region.places if not any(r.near(p) for r in rivals))
            colour = region.colour
            apart = colour and max(r.colours[COLOURS.index(colour)] for r in rivals) < 0.2
            apart = apart and not (colour in SKIN and self.name(region.category) in PEOPLE)
            if apart and self.chance(0.6):
                found.append(self.single(region, colour))
            elif places:
                again = bool(found) and self.chance(0.4)
                found.append(self.single(region, "another" if again else "", self.one_of(places)))
            elif n == 0 and region.area > 3 * ranked[1].area:
                found.append(self.single(region, "big" if self.chance(0.15) else ""))
            elif n == 1 and len(here) == 2 and found:
                found.append(self.single(region, "another"))
        rest = [r for r in here if not any(m and r.id in m.nouns[0].ids for m in found)]
        if found and len(rest) > 1 and self.chance(0.35) and (word := self.word(here[0].category, MANY)):
            found.append(self.mention(f"other {word.text}", rest, word, True))
        return found

    def all_of(self, here: list[Region]) -> list[Mention | None]:
        word = self.word(here[0].category, MANY)
        return [self.several(word, here)] if word else []

    def side_of(self, here: list[Region]) -> list[Mention | None]:
        """`few people on the left`: those of one side, where nobody else could be meant."""
        word = self.word(here[0].category, MANY)
        for place in ("left", "right", "bottom", "top"):
            those = [r for r in here if place in r.places]
            if word and len(here) > len(those) > 1 and not any(r.near(place) for r in here if r not in those):
                return [self.several(word, those, place)]
        return []

    def several(self, word: Word, those: list[Region], must: str = "") -> Mention:
        counted = word.form == MANY and not any(r.crowd or not r.category.isthing for r in those)
        name = self.name(those[0].category) if len({r.category.id for r in those}) == 1 else ""
        amount = self.wording.amount(len(those), name) if counted else self.wording.vague()
        amount = "" if word.form == MASS else amount
        text = amount + self.wording.coloured(those, name, word.text)
        return self.mention(text, those, word, word.form != MASS, self.extras(those[0], True), must)

    def wider(self) -> list[Mention]:
        """One mention by a word that means several categories here: `vehicles`, `bikes`, `walls`."""
        options: list[tuple[Word, list[Region]]] = []
        for words, members, unless in self.lexicon.wider if self.exhaustive else ():
            those = [r for r in self.regions if r.category.id in members]
            if those and not any(r.category.id in unless for r in self.regions):
                alone = len(those) == 1 and not those[0].crowd and those[0].category.isthing
                fits = [w for w in words if (w.form == ONE) == alone or w.form == MASS]
                options += [(w, those) for w in fits]
        for id in list(self.of):
            for word in self.lexicon.words[id]:
                reach = self.reach(word) if word.form == MANY else []
                if len({r.category.id for r in reach}) > 1:
                    options.append((word, reach))
        if not options:
            return []
        word, those = self.one_of(options, [w.weight for w, _ in options])
        if word.form == ONE:
            return [
                self.mention(
                    self.wording.coloured(those, self.name(those[0].category), word.text), those, word, False
                )
            ]
        return [self.several(word, sorted(those, key=lambda r: -r.area))]

    def absent(self) -> Mention | None:
        """Something the source annotates that this photo does not show, nor anything called alike."""
        here = {w.lemma for id in self.of for w in self.lexicon.words[id]}
        missing = [id for id, words in self.lexicon.words.items() if not any(w.lemma in here for w in words)]
        if not missing:
            return None
        id = self.one_of(missing)
        words = self.lexicon.words[id]
        word = self.one_of(words, [w.weight for w in words])
        category = self.lexicon.categories[id]
        text = (self.wording.vague() if word.form == MANY else "") + word.text
        noun = Noun(text, (), category.isthing, absent=True)
        return Mention((*self.wording.article(text, word), noun), word.form == MANY)

    # parts of a mention
    def mention(
        self,
        text: str,
        those: list[Region],
        word: Word,
        many: bool,
        extras: tuple[Piece, ...] = (),
        must: str = "",
    ) -> Mention:
        noun = Noun(text, tuple(r.id for r in those), those[-1].category.isthing)
        self.called[noun.ids] = word
        if extras[:1] == ("which is in",) and any(w in COLOURS for w in text.split()):
            extras = ()
        places = frozenset.intersection(*(r.places for r in those))
        back = self.name(those[0].category) in BACK
        article = self.wording.article(text, word, not those[0].category.isthing)
        return Mention((*article, noun, *extras), many, places, must, back)

    def extras(self, region: Region, many: bool = False) -> tuple[Piece, ...]:
        """What may follow the noun: on what it stands, what is held or worn, a part of it."""
        name, below = self.name(region.category), self.by_id.get(region.below)
        under = self.name(below.category) if below else ""
        if name in PEOPLE:
            return self.person(region, below if under in SURFACES else None, many)
        if below and self.chance(0.4):
            verbs: tuple[str, ...] = ()
            if name in VEHICLES and under in GROUND:
                verbs = ("on", "parked on", "moving on")
            elif name in ANIMALS and under in SURFACES:
                verbs = ("standing on", "on", "lying on", "sitting on")
            elif region.category.isthing and under in SURFACES:
                verbs = ("on", "placed on", "kept on")
            elif name == "boat" and under in WATERS:
                verbs = ("on", "in", "floating on")
            if verbs and (noun := self.beside(below)):
                return (self.one_of(verbs), "the", noun)
        if not many and region.colour not in ("", "black") and self.chance(0.05):
            return ("which is in", region.colour, Noun("color"))
        parts = [
            p
            for p in PARTS.get(name, ())
            if not any(self.known(n) for n in unfold(p)) and not (many and " a " in p)
        ]
        return unfold(self.one_of(parts)) if parts and self.chance(0.35) else ()

    def known(self, piece: Piece) -> bool:
        """A noun that points to nothing must not name what the source annotates."""
        return isinstance(piece, Noun) and self.lexicon.knows(
            piece.text.removeprefix("some ").removeprefix("few ")
        )

    def beside(self, region: Region) -> Noun | None:
        """The plain noun for another segment that can only mean it."""
        word = self.called.get((region.id,)) or self.word(region.category, ONE, MASS)
        if word is None or len(self.reach(word)) > 1 or (region.crowd and region.category.isthing):
            return None
        return Noun(word.text, (region.id,), region.category.isthing)

    def person(self, region: Region, below: Region | None, many: bool) -> tuple[Piece, ...]:
        said: tuple[Piece, ...] = ()
        if not many and not region.crowd:
            near = self.reachable(region)
            if near and self.chance(0.5):
                item = self.one_of(near)
                rides = self.name(item.category) in RIDDEN and region.y < item.y
                if (noun := self.held(item, near)) and (rides or self.name(item.category) in HELD):
                    a = "an" if noun.text[0] in "aeiou" else "a"
                    return (self.one_of(("riding", "on")) if rides else "holding", a, noun)
        if self.chance(0.65):
            verb = (
                "sitting"
                if below and self.name(below.category) in SEATS
                else self.one_of(("standing", "walking", "standing", "sitting"))
            )
            said = (self.one_of(("is ", "")) * (not many) + verb,) if self.chance(0.6) else ()
            if below and (noun := self.beside(below)):
                said = (*said, "on", "the", noun)
        if not many and self.chance(0.35):
            best = max(range(1, len(COLOURS)), key=region.colours.__getitem__) if region.colours else 0
            clear = best and COLOURS[best] not in SKIN and region.colours[best] > 0.3 and region.area > 400
            tint = f"{COLOURS[best]} " if clear else ""
            worn = f"a [{tint}{self.one_of(GARMENTS)}]" if tint or self.chance(0.5) else self.one_of(WORN)
            said = (*said, *(("and",) if said else ()), "wearing", *unfold(worn))
        return said

    def held(self, item: Region, near: list[Region]) -> Noun | None:
        """The noun for what a person has; the only one of its kind within the person's reach."""
        word = self.word(item.category, ONE)
        if word is None or item.crowd or sum(r.category.id == item.category.id for r in near) > 1:
            return None
        return Noun(word.text, (item.id,), item.category.isthing)

    def again(self, mention: Mention) -> Noun | None:
        """`man` for a later sentence, where the plain noun can only mean what it meant before."""
        noun = mention.nouns[0]
        word = self.called.get(noun.ids)
        alone = word is not None and {r.id for r in self.reach(word)} == set(noun.ids)
        return replace(noun, text=word.text) if word and noun.isthing and alone else None

    def other(self) -> Mention:
        """A noun that points to nothing, of a kind that this source does not annotate."""
        options = [o for o in MANNER["others"] if not any(self.known(p) for p in unfold(o))]
        pieces = unfold(self.one_of(options))
        return Mention(pieces, isinstance(pieces[0], Noun))
