"""Segments of an image -> mentions: a noun phrase with its article, amount, color and modifiers."""

from dataclasses import dataclass, replace

from ppmn.data.panoptic import Category
from ppmn.synthetic.distinctions import Distinction, Distinctions
from ppmn.synthetic.modifiers import SKIN_COLORS, Modifiers
from ppmn.synthetic.nouns import NounForm, Word
from ppmn.synthetic.regions import COLOR_NAMES, SIDES, Region
from ppmn.synthetic.templates import CONFUSABLE, GROUPS, TEMPLATES
from ppmn.synthetic.vocabulary import Vocabulary
from ppmn.synthetic.wording import Mention, NounPhrase, Piece, Pieces, parse_template

_DISTINCT = 0.75  # how often one of several things is told apart in the words next to it
_INSIDE = 0.3  # how often also what follows the noun is part of the phrase; what precedes it always is
_ALL = 0.15  # how often `all` or `both` is said of all things of a kind
_CONFUSED = 0.45  # how often an absent thing is of a kind that is taken for one in the image
_ANY_FORM = (NounForm.SINGULAR, NounForm.PLURAL, NounForm.MASS)


@dataclass
class Mentioner:
    """Mentions that are true of the segments of one image, if all that the categories name is annotated."""

    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        self.modifiers, self.distinctions = Modifiers(self.vocabulary), Distinctions(self.vocabulary)
        self.wording = self.vocabulary.wording
        self.chance, self.choose = self.wording.chance, self.wording.choose

    def of_category(self, id: int) -> list[Mention]:
        """Mentions of a category's segments: one by one, some of them, or all at once."""
        regions = self.vocabulary.by_category[id]
        stuff = not regions[0].category.isthing
        if stuff or (len(regions) == 1 and regions[0].crowd):
            found = [self.uncounted(regions)]
        elif len(regions) == 1:
            found = [self.single(regions[0])]
        else:
            all_at_once = min(0.1 + 0.08 * len(regions), 0.7)
            ways = [self.one_by_one, self.all_of, self.of_one_side]
            way = self.choose(ways, [0.85 - all_at_once, all_at_once, 0.15])
            found = way(regions) or self.all_of(regions)
        return [m for m in found if m]

    def uncounted(self, regions: list[Region]) -> Mention | None:
        """A mention of stuff, or of one segment with any number of things."""
        category, name = regions[0].category, self.vocabulary.name(regions[0])
        forms: tuple[NounForm, ...] = _ANY_FORM
        if category.isthing:
            single = self.chance(0.85 if name in GROUPS["usually_single"] else 0.5)
            forms = (NounForm.SINGULAR if single else NounForm.PLURAL, NounForm.MASS)
        word = self.vocabulary.word(category, *forms) or self.vocabulary.word(category, *_ANY_FORM)
        if word is None:
            return None
        amount = self.wording.vague_amount() if word.form == NounForm.PLURAL else ""
        text = amount + self.wording.described(regions, name, word.text)
        modifiers = self.modifiers.of(regions[0]) if len(regions) == 1 else ()
        return self.mention(text, regions, word, modifiers)

    def single(self, region: Region, adjective: str = "", required_side: str = "") -> Mention | None:
        """A mention of one segment, with an adjective or a side where that tells it from others."""
        word = (
            self.vocabulary.used.get((region.id,))
            or self.vocabulary.role(region)
            or self.vocabulary.word(region.category, NounForm.SINGULAR)
        )
        if word is None:
            return None
        modifiers = self.modifiers.of(region)
        name = self.vocabulary.name(region)
        if adjective in COLOR_NAMES[1:] and name in GROUPS["people"]:
            text = word.text
            modifiers = parse_template(f"wearing a [{adjective} {self.choose(TEMPLATES['garments'])}]")
        elif adjective in COLOR_NAMES[1:]:
            text = self.wording.colored(adjective, word.text)
        elif adjective:
            text = f"{adjective} {word.text}"
        else:
            text = self.wording.described([region], name, word.text)
        return self.mention(text, [region], word, modifiers, required_side)

    def distinct(self, region: Region, distinction: Distinction) -> Mention | None:
        """A mention of one of several things; what tells it apart is in the noun phrase or beside it."""
        word = self.vocabulary.used.get((region.id,)) or self.word_among(region)
        if word is None:
            return None
        inside = self.chance(_INSIDE)
        text = distinction.inside(word.text) if inside else f"{distinction.before} {word.text}".strip()
        outside = () if inside else distinction.outside()
        bare = not distinction.before or distinction.before in COLOR_NAMES
        article = self.wording.article(text, word) if bare else ("the",)
        self.vocabulary.used[(region.id,)] = word
        modifiers = () if distinction.after else self.modifiers.of(region)
        noun = NounPhrase(text, (region.id,), region.category.isthing)
        return Mention((*article, noun, *outside, *modifiers), plural=False)

    def word_among(self, region: Region) -> Word | None:
        """A word for one of several things; of people mostly `person`, since masks do not show more."""
        if self.vocabulary.name(region) == "person" and self.chance(0.6):
            return Word("person", NounForm.SINGULAR)
        return self.vocabulary.role(region) or self.vocabulary.word(region.category, NounForm.SINGULAR)

    def one_of(self, mention: Mention) -> Pieces:
        """`one of the dogs is on the left and the other one is on the right`, after all were mentioned."""
        ids = mention.nouns[0].ids
        word, regions = self.vocabulary.used.get(ids), [self.vocabulary.by_id[i] for i in ids]
        if word is None or regions not in self.distinctions.kinds() or word.form != NounForm.PLURAL:
            return ()
        regions = [regions[int(i)] for i in self.wording.rng.permutation(len(regions))]
        pieces: list[Piece] = []
        for region in regions[: 2 if len(regions) == 2 else 1]:
            others = [r for r in regions if r is not region]
            places = [d for d in self.distinctions.places(region, others) if not d.before]
            if not places:
                break
            text = "other one" if pieces else f"one of the {word.text}"
            start = ("and", "the") if pieces else ()
            noun = NounPhrase(text, (region.id,), region.category.isthing)
            pieces += [*start, noun, "is", *self.choose(places).outside()]
        return (*pieces, ".") if pieces else ()

    def one_by_one(self, regions: list[Region]) -> list[Mention | None]:
        """The largest few one by one, each distinguished from the others where that is possible."""
        found: list[Mention | None] = []
        by_size = sorted(regions, key=lambda r: -r.area)
        for n, region in enumerate(by_size[: int(self.wording.rng.integers(1, 4))]):
            others = [r for r in regions if r is not region]
            if region.crowd or region.area < 0.08 * by_size[0].area:
                continue
            distinction = self.distinctions.choose(region, regions) if self.chance(_DISTINCT) else None
            if distinction and not any(r.crowd for r in others):
                found.append(self.distinct(region, distinction))
                continue
            sides = sorted(s for s in region.sides if not any(r.may_be_on(s) for r in others))
            if self.has_own_color(region, others) and self.chance(0.6):
                found.append(self.single(region, region.color))
            elif sides:
                adjective = "another" if found and self.chance(0.4) else ""
                found.append(self.single(region, adjective, self.choose(sides)))
            elif n == 0 and region.area > 3 * by_size[1].area:
                found.append(self.single(region, "big" if self.chance(0.15) else ""))
            elif n == 1 and len(regions) == 2 and found:
                found.append(self.single(region, "another"))
        rest = [r for r in regions if not any(m and r.id in m.nouns[0].ids for m in found)]
        if found and len(rest) > 1 and self.chance(0.35):
            word = self.vocabulary.word(regions[0].category, NounForm.PLURAL)
            found += [self.mention(f"other {word.text}", rest, word)] if word else []
        return found

    def has_own_color(self, region: Region, others: list[Region]) -> bool:
        """Whether its color tells it from the others."""
        skin = region.color in SKIN_COLORS and self.vocabulary.name(region) in GROUPS["people"]
        if not region.color or skin:
            return False
        return max(r.color_fractions[COLOR_NAMES.index(region.color)] for r in others) < 0.2

    def all_of(self, regions: list[Region]) -> list[Mention | None]:
        """One mention of all segments of a category."""
        word = self.vocabulary.word(regions[0].category, NounForm.PLURAL)
        if word and regions in self.distinctions.kinds() and self.chance(_ALL):
            amount = self.choose(("both ", "both the ") if len(regions) == 2 else ("all ", "all the "))
            return [self.mention(amount + word.text, regions, word)]
        return [self.several(word, regions)] if word else []

    def of_one_side(self, regions: list[Region]) -> list[Mention | None]:
        """`few people on the left`: those of one side, where no other could be meant."""
        word = self.vocabulary.word(regions[0].category, NounForm.PLURAL)
        for side in ("left", "right", "bottom", "top"):
            chosen = [r for r in regions if side in r.sides]
            ambiguous = any(r.may_be_on(side) for r in regions if r not in chosen)
            if word and len(regions) > len(chosen) > 1 and not ambiguous:
                return [self.several(word, chosen, side)]
        return []

    def several(self, word: Word, regions: list[Region], required_side: str = "") -> Mention:
        """One mention of several segments."""
        counted = word.form == NounForm.PLURAL and not any(r.crowd or not r.category.isthing for r in regions)
        one_category = len({r.category.id for r in regions}) == 1
        name = self.vocabulary.name(regions[0]) if one_category else ""
        amount = self.wording.amount(len(regions), name) if counted else self.wording.vague_amount()
        mass = word.form == NounForm.MASS
        text = ("" if mass else amount) + self.wording.described(regions, name, word.text)
        modifiers = self.modifiers.of(regions[0], plural=True)
        if required_side and self.chance(0.4):
            text += f" {'on' if required_side in ('left', 'right') else 'at'} the {required_side}"
            return replace(self.mention(text, regions, word, modifiers), sides=frozenset())
        return self.mention(text, regions, word, modifiers, required_side)

    def by_hypernym(self) -> list[Mention]:
        """One mention by a word that means several categories of the image: `vehicles`, `bikes`, `walls`."""
        options = self.hypernym_options()
        for id in list(self.vocabulary.by_category):
            for word in self.vocabulary.lexicon.words[id]:
                referents = self.vocabulary.referents(word) if word.form == NounForm.PLURAL else []
                if len({r.category.id for r in referents}) > 1:
                    options.append((word, referents))
        if not options:
            return []
        word, regions = self.choose(options, [w.weight for w, _ in options])
        if word.form == NounForm.SINGULAR:
            text = self.wording.described(regions, self.vocabulary.name(regions[0]), word.text)
            return [self.mention(text, regions, word)]
        return [self.several(word, sorted(regions, key=lambda r: -r.area))]

    def hypernym_options(self) -> list[tuple[Word, list[Region]]]:
        """Hypernyms that are true here, each with the segments it means."""
        options: list[tuple[Word, list[Region]]] = []
        names = {self.vocabulary.name(r) for r in self.vocabulary.regions}
        for hypernym in self.vocabulary.lexicon.hypernyms:
            regions = [r for r in self.vocabulary.regions if self.vocabulary.name(r) in hypernym.members]
            if not regions or hypernym.unless & names:
                continue
            single = len(regions) == 1 and not regions[0].crowd and regions[0].category.isthing
            options += [
                (word, regions)
                for word in hypernym.words
                if (word.form == NounForm.SINGULAR) == single or word.form == NounForm.MASS
            ]
        return options

    def absent(self) -> Mention | None:
        """A mention of what is not in the image: another of a kind that is, or of a kind that is not."""
        wrong = self.distinctions.wrong() if self.chance(0.3) else None
        word = self.word_among(wrong[0]) if wrong else None
        if wrong and word:
            text, article = wrong[1].inside(word.text), "the" if wrong[1].before else "a"
            return Mention((article, NounPhrase(text, (), True, absent=True)), False)
        if (missing := self.absent_word()) is None:
            return None
        word, category = missing
        plural = word.form == NounForm.PLURAL
        text = (self.wording.vague_amount() if plural else "") + self.absent_description(word, category)
        noun = NounPhrase(text, (), category.isthing, absent=True)
        sides = frozenset({self.choose(SIDES)}) if self.chance(0.4) else frozenset()
        return Mention((*self.wording.article(text, word), noun), plural, sides)

    def absent_word(self) -> tuple[Word, Category] | None:
        """A word for a category that is not in the image, often one that is taken for one that is."""
        lexicon = self.vocabulary.lexicon
        names = {self.vocabulary.name(r) for r in self.vocabulary.regions}
        present = {w.lemma for id in self.vocabulary.by_category for w in lexicon.words[id]}
        present |= lexicon.hypernym_lemmas(names)
        missing = [id for id, words in lexicon.words.items() if not any(w.lemma in present for w in words)]
        if not missing:
            return None
        alike = {n for group in CONFUSABLE if names & set(group) for n in group}
        close = [id for id in missing if lexicon.names[id] in alike]
        id = self.choose(close if close and self.chance(_CONFUSED) else missing)
        words = lexicon.words[id]
        return self.choose(words, [w.weight for w in words]), lexicon.categories[id]

    def absent_description(self, word: Word, category: Category) -> str:
        """A color or a size as often as present things have one, so that words do not give absence away."""
        if self.vocabulary.lexicon.names[category.id] in GROUPS["people"]:
            return word.text
        if self.chance(0.25):
            return self.wording.colored(self.choose(COLOR_NAMES[1:]), word.text)
        sized = category.isthing and self.chance(0.05)
        return f"{self.choose(('big', 'large', 'small'))} {word.text}" if sized else word.text

    def mention(
        self, text: str, regions: list[Region], word: Word, modifiers: Pieces = (), required_side: str = ""
    ) -> Mention:
        """A noun phrase for the regions with its article and modifiers."""
        noun = NounPhrase(text, tuple(r.id for r in regions), regions[-1].category.isthing)
        self.vocabulary.used[noun.ids] = word
        if modifiers[:1] == ("which is in",) and any(w in COLOR_NAMES for w in text.split()):
            modifiers = ()
        sides = frozenset.intersection(*(r.sides for r in regions))
        background = self.vocabulary.name(regions[0]) in GROUPS["background"]
        article = self.wording.article(text, word, not regions[0].category.isthing)
        plural = word.form == NounForm.PLURAL
        return Mention((*article, noun, *modifiers), plural, sides, required_side, background)

    def second_noun(self, mention: Mention) -> NounPhrase | None:
        """The plain noun for a later sentence, where it can only mean what it meant before."""
        noun = mention.nouns[0]
        word = self.vocabulary.used.get(noun.ids)
        if word is None or not noun.isthing:
            return None
        unambiguous = {r.id for r in self.vocabulary.referents(word)} == set(noun.ids)
        return replace(noun, text=word.text) if unambiguous else None

    def ungrounded(self) -> Mention:
        """A noun phrase without a mask, for something that the data set does not annotate."""
        options = map(parse_template, TEMPLATES["ungrounded"])
        pieces = self.choose([option for option in options if not self.vocabulary.is_annotated(option)])
        return Mention(pieces, isinstance(pieces[0], NounPhrase))
