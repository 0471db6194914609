"""The nouns for the segments of one image, so that each means what it should and nothing else."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ppmn.data.panoptic import Category
from ppmn.synthetic.nouns import Lexicon, NounForm, Word
from ppmn.synthetic.regions import Region
from ppmn.synthetic.templates import GROUPS, ROLES
from ppmn.synthetic.wording import NounPhrase, Piece, Wording


@dataclass
class Vocabulary:
    """Words for the regions of one image; `used` remembers the word that was used for which segments."""

    lexicon: Lexicon
    regions: list[Region]
    wording: Wording
    used: dict[tuple[int, ...], Word] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_category: dict[int, list[Region]] = defaultdict(list)
        for region in self.regions:
            self.by_category[region.category.id].append(region)
        self.by_id = {r.id: r for r in self.regions}
        self.outdoors = any(self.name(r) in GROUPS["outdoors"] for r in self.regions)

    def name(self, region: Region) -> str:
        """The base name of a region's category."""
        return self.lexicon.names[region.category.id]

    def referents(self, word: Word) -> list[Region]:
        """Every region of the image that the word may mean."""
        return [r for id in self.lexicon.category_ids(word) for r in self.by_category.get(id, ())]

    def word(self, category: Category, *forms: NounForm) -> Word | None:
        """A word for the category that means no other category of the image."""
        options = [
            word
            for word in self.lexicon.words[category.id]
            if word.form in forms and all(r.category.id == category.id for r in self.referents(word))
        ]
        return self.wording.choose(options, [w.weight for w in options]) if options else None

    def role(self, region: Region) -> Word | None:
        """Sometimes `surfer` for a person with a surfboard."""
        if self.name(region) != "person" or not self.wording.chance(0.3):
            return None
        names = [self.name(r) for r in self.within_reach(region)]
        roles = [ROLES[name] for name in names if name in ROLES]
        choose = self.wording.choose
        return Word(choose(choose(roles)), NounForm.SINGULAR) if roles else None

    def within_reach(self, person: Region) -> list[Region]:
        """What a person may hold, wear or ride: things with their center in the person's box."""
        x0, y0, x1, y1 = person.box
        inside = [r for r in self.regions if x0 <= r.x <= x1 and y0 <= r.y <= y1]
        return [r for r in inside if self.name(r) in GROUPS["ridden"] | GROUPS["held"] | GROUPS["worn"]]

    def is_annotated(self, pieces: Iterable[Piece]) -> bool:
        """Whether the data set annotates what a noun phrase names; those without a mask must not."""
        nouns = [piece.text for piece in pieces if isinstance(piece, NounPhrase)]
        return any(self.lexicon.covers(n.removeprefix("some ").removeprefix("few ")) for n in nouns)

    def definite(self, region: Region) -> NounPhrase | None:
        """The plain noun for a region where it can mean nothing else."""
        word = self.used.get((region.id,)) or self.word(region.category, NounForm.SINGULAR, NounForm.MASS)
        if word is None or len(self.referents(word)) > 1 or (region.crowd and region.category.isthing):
            return None
        return NounPhrase(word.text, (region.id,), region.category.isthing)
