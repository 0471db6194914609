"""What may follow a noun: what the thing is on, what a person holds or wears, a part of it."""

from dataclasses import dataclass

from ppmn.synthetic.nouns import NounForm
from ppmn.synthetic.regions import COLOR_NAMES, Region
from ppmn.synthetic.templates import GROUPS, PARTS, TEMPLATES
from ppmn.synthetic.vocabulary import Vocabulary
from ppmn.synthetic.wording import NounPhrase, Pieces, indefinite_article, parse_template

SKIN_COLORS = ("brown", "pink", "orange")  # not taken for the color of clothes


@dataclass
class Modifiers:
    """Random modifiers that are true of a region."""

    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        self.wording = self.vocabulary.wording
        self.chance, self.choose = self.wording.chance, self.wording.choose

    def of(self, region: Region, plural: bool = False) -> Pieces:
        """A modifier of a noun for the region, or nothing."""
        name = self.vocabulary.name(region)
        below = self.vocabulary.by_id.get(region.below)
        if name in GROUPS["people"]:
            on_surface = below and self.vocabulary.name(below) in GROUPS["surfaces"]
            return self.of_person(region, below if on_surface else None, plural)
        if below and self.chance(0.4):
            verbs = self.verbs(region, below)
            if verbs and (noun := self.vocabulary.definite(below)):
                return (self.choose(verbs), "the", noun)
        if not plural and region.color not in ("", "black") and self.chance(0.05):
            return ("which is in", region.color, NounPhrase("color"))
        parts = [parse_template(p) for p in PARTS.get(name, ()) if not (plural and " a " in p)]
        parts = [part for part in parts if not self.vocabulary.is_annotated(part)]
        return self.choose(parts) if parts and self.chance(0.35) else ()

    def verbs(self, region: Region, below: Region) -> tuple[str, ...]:
        """How a thing may be on what is below it."""
        name, surface = self.vocabulary.name(region), self.vocabulary.name(below)
        if name in GROUPS["vehicles"] and surface in GROUPS["ground"]:
            return ("on", "parked on", "moving on")
        if name in GROUPS["animals"] and surface in GROUPS["surfaces"]:
            return ("standing on", "on", "lying on", "sitting on")
        if region.category.isthing and surface in GROUPS["surfaces"]:
            return ("on", "placed on", "kept on")
        if name == "boat" and surface in GROUPS["water"]:
            return ("on", "in", "floating on")
        return ()

    def of_person(self, person: Region, below: Region | None, plural: bool) -> Pieces:
        """What a person holds or rides, or a posture and clothes."""
        if not plural and not person.crowd and (action := self.action(person)):
            return action
        pieces = self.posture(below, plural) if self.chance(0.65) else ()
        if not plural and self.chance(0.35):
            verb = ("and", "wearing") if pieces else ("wearing",)
            pieces = (*pieces, *verb, *parse_template(self.clothes(person)))
        return pieces

    def action(self, person: Region) -> Pieces:
        """`riding a horse`, `holding a cup`, `wearing a tie`."""
        near = self.vocabulary.within_reach(person)
        if not near or not self.chance(0.5):
            return ()
        item = self.choose(near)
        name = self.vocabulary.name(item)
        rides = name in GROUPS["ridden"] and person.y < item.y
        noun = self.item_noun(item, near)
        if noun is None or not (rides or name in GROUPS["held"] | GROUPS["worn"]):
            return ()
        verb = self.choose(("riding", "on")) if rides else "wearing" if name in GROUPS["worn"] else "holding"
        return (verb, indefinite_article(noun.text), noun)

    def item_noun(self, item: Region, near: list[Region]) -> NounPhrase | None:
        """The noun for what a person has, the only one of its category within reach."""
        word = self.vocabulary.word(item.category, NounForm.SINGULAR)
        if word is None or item.crowd or sum(r.category.id == item.category.id for r in near) > 1:
            return None
        return NounPhrase(word.text, (item.id,), item.category.isthing)

    def posture(self, below: Region | None, plural: bool) -> Pieces:
        """`is standing on the grass`, or less."""
        seated = below is not None and self.vocabulary.name(below) in GROUPS["seats"]
        verb = "sitting" if seated else self.choose(("standing", "walking", "standing", "sitting"))
        pieces: Pieces = ()
        if self.chance(0.6):
            pieces = (self.choose(("is ", "")) * (not plural) + verb,)
        if below and (noun := self.vocabulary.definite(below)):
            pieces = (*pieces, "on", "the", noun)
        return pieces

    def clothes(self, person: Region) -> str:
        """A template of what a person wears, with its color where that is clear."""
        fractions = person.color_fractions
        color = ""
        if fractions and person.area > 400:
            best = max(range(1, len(COLOR_NAMES)), key=fractions.__getitem__)
            if COLOR_NAMES[best] not in SKIN_COLORS and fractions[best] > 0.3:
                color = f"{COLOR_NAMES[best]} "
        if color or self.chance(0.5):
            return f"a [{color}{self.choose(TEMPLATES['garments'])}]"
        return self.choose(TEMPLATES["accessories"])
