"""What tells one thing from the others of its kind: its place, order, size, color, or what is beside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ppmn.synthetic.modifiers import SKIN_COLORS
from ppmn.synthetic.regions import COLOR_NAMES, Region
from ppmn.synthetic.templates import DISTINCTIONS, GROUPS, TEMPLATES
from ppmn.synthetic.vocabulary import Vocabulary
from ppmn.synthetic.wording import NounPhrase, Pieces, parse_template

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_GAPS = {"x": 0.12, "y": 0.2}  # between centers, as fractions of the image, for the outermost of a kind
_ORDER_GAP = 0.06  # between neighbours that are counted from a side
_LARGER = 2.0  # times the area of any other
_CLOSER = 3.0  # the same, where it also reaches further down
_CLOTHES = 0.3  # of a person's pixels in one color that no other person has a third of
_NEAR, _FAR = 0.03, 0.15  # gaps between boxes: "next to", and surely not
_WEIGHTS = {"place": 5.0, "order": 2.5, "size": 1.0, "color": 2.0, "relation": 2.5}
_AXES = (("x", "left", "right"), ("y", "top", "bottom"))


@dataclass(frozen=True)
class Distinction:
    """Words before and after a noun that make it mean one thing; `@` stands for the noun of `neighbour`."""

    before: str = ""
    after: str = ""  # a template
    neighbour: NounPhrase | None = None

    def inside(self, noun: str) -> str:
        """All of it as one noun phrase: `second car from the left`."""
        after = self.after.replace("[", "").replace("]", "")
        if self.neighbour:
            after = after.replace("@", self.neighbour.text)
        return f"{self.before} {noun} {after}".strip()

    def outside(self) -> Pieces:
        """What follows the noun phrase, with its own noun phrases."""
        before, at, after = self.after.partition("@")
        neighbour = (self.neighbour,) if at and self.neighbour else ()
        return (*parse_template(before), *neighbour, *parse_template(after))


def _templates(name: str, neighbour: NounPhrase | None = None, **values: str) -> list[Distinction]:
    """The entries `before | after` of a table, filled in."""
    found = []
    for entry in DISTINCTIONS[name]:
        before, _, after = entry.partition("|")
        found.append(Distinction(before.format(**values), after.format(**values), neighbour))
    return found


def center(region: Region, axis: str) -> tuple[float, float]:
    """The centers of mask and box along `x` or `y`."""
    (x, y), (box_x, box_y) = region.centers
    return (x, box_x) if axis == "x" else (y, box_y)


def _is_before(first: Region, second: Region, axis: str, gap: float) -> bool:
    """Whether the center of the mask comes first by at least `gap`, and that of the box too."""
    (a, a_box), (b, b_box) = center(first, axis), center(second, axis)
    return a + gap < b and a_box < b_box


def box_gap(a: Region, b: Region) -> float:
    """How far apart two boxes are along the axis where they are further apart."""
    x = max(a.box[0] - b.box[2], b.box[0] - a.box[2])
    y = max(a.box[1] - b.box[3], b.box[1] - a.box[3])
    return max(x, y)


@dataclass
class Distinctions:
    """What distinguishes the things of one image."""

    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        self.wording = self.vocabulary.wording

    def kinds(self) -> list[list[Region]]:
        """The things of each category that has several of them, none of them a crowd."""
        kinds = self.vocabulary.by_category.values()
        return [k for k in kinds if len(k) > 1 and k[0].category.isthing and not any(r.crowd for r in k)]

    def choose(self, region: Region, kind: Sequence[Region]) -> Distinction | None:
        """Something that is true of the region and of no other of its kind; None if nothing is clear."""
        others = [r for r in kind if r is not region]
        ways: dict[str, Callable[[Region, Sequence[Region]], list[Distinction]]] = {
            "place": self.places,
            "order": self.order,
            "size": self.sizes,
            "color": self.colors,
            "relation": self.relations,
        }
        while ways:
            name = self.wording.choose(list(ways), [_WEIGHTS[way] for way in ways])
            if found := ways.pop(name)(region, others):
                return self.wording.choose(found)
        return None

    def places(self, region: Region, others: Sequence[Region]) -> list[Distinction]:
        """The outermost on a side, the one between two others, or the only one in a corner."""
        found = []
        for axis, low, high in _AXES:
            gap = _GAPS[axis]
            for side, comes_first in ((low, True), (high, False)):
                pairs = [(region, r) if comes_first else (r, region) for r in others]
                if not all(_is_before(a, b, axis, gap) for a, b in pairs):
                    continue
                found += _templates(side)
                edge = max(center(region, axis)) < 0.3 if comes_first else min(center(region, axis)) > 0.7
                found += _templates("far", side=side) if edge and axis == "x" else []
        if len(others) == 2:
            first, last = sorted(others, key=lambda r: r.x)
            if _is_before(first, region, "x", 0.1) and _is_before(region, last, "x", 0.1):
                found += _templates("between") * 3
        for corner in ({"left", "top"}, {"right", "top"}, {"left", "bottom"}, {"right", "bottom"}):
            taken = any(all(r.may_be_on(side) for side in corner) for r in others)
            if corner <= region.sides and not taken:
                x, y = sorted(corner & {"left", "right"}) + sorted(corner & {"top", "bottom"})
                found += _templates("corner", x=x, y=y)
        return found

    def order(self, region: Region, others: Sequence[Region]) -> list[Distinction]:
        """`second from the left`, where all up to it and the next one are clearly apart."""
        ordered = sorted([region, *others], key=lambda r: r.x)
        found = []
        for side, line in (("left", ordered), ("right", ordered[::-1])):
            rank = line.index(region)
            steps = list(pairwise(line[: rank + 2]))
            pairs = steps if side == "left" else [(b, a) for a, b in steps]
            clear = all(_is_before(a, b, "x", _ORDER_GAP) for a, b in pairs)
            if clear and rank < len(_ORDINALS) and (len(line) > 2 or rank):
                found += _templates("order", ordinal=_ORDINALS[rank], side=side)
        return found

    def sizes(self, region: Region, others: Sequence[Region]) -> list[Distinction]:
        """The largest or smallest, the closest or the one furthest back."""
        areas, bottoms = [r.area for r in others], [r.box[3] for r in others]
        found = []
        if region.area > _LARGER * max(areas):
            found += _templates("larger" if len(others) == 1 else "largest")
        if region.area * _LARGER < min(areas):
            found += _templates("smaller" if len(others) == 1 else "smallest")
        if region.area > _CLOSER * max(areas) and region.box[3] > max(bottoms) + 0.05:
            found += _templates("closest")
        if region.area * _CLOSER < min(areas) and region.box[3] < min(bottoms) - 0.05:
            found += _templates("furthest")
        return found

    def colors(self, region: Region, others: Sequence[Region]) -> list[Distinction]:
        """A color that no other of its kind has; of a person, that of the clothes."""
        if not region.color_fractions:
            return []
        people = self.vocabulary.name(region) in GROUPS["people"]
        best = max(range(1, len(COLOR_NAMES)), key=region.color_fractions.__getitem__)
        color, elsewhere = COLOR_NAMES[best], max(r.color_fractions[best] for r in others)
        if people:
            dressed = region.area > 400 and color not in SKIN_COLORS
            if dressed and region.color_fractions[best] > max(_CLOTHES, 3 * elsewhere):
                garment = self.wording.choose(TEMPLATES["garments"])
                return _templates("clothes", color=color, garment=garment)
            return []
        return [Distinction(color)] if region.color == color and elsewhere < 0.2 else []

    def relations(self, region: Region, others: Sequence[Region]) -> list[Distinction]:
        """What it alone of its kind has, is on, or is next to."""
        found = []
        for item in self.vocabulary.within_reach(region):
            noun = self.only_noun(item)
            if noun and not any(item in self.vocabulary.within_reach(r) for r in others):
                found += self.action(region, item, noun)
        near = [r for r in self.vocabulary.regions if r.category.isthing and 0 <= box_gap(region, r) < _NEAR]
        for other in near:
            aside = not any(box_gap(r, other) < _FAR for r in others)
            if aside and other.category.id != region.category.id and (noun := self.only_noun(other)):
                found += _templates("near", noun)
        below = self.vocabulary.by_id.get(region.below)
        if below and not any(r.below == below.id or box_gap(r, below) < 0 for r in others):
            name, noun = self.vocabulary.name(below), self.only_noun(below)
            if noun and name in GROUPS["seats"] | GROUPS["surfaces"]:
                behind = name in GROUPS["tables"] and self.vocabulary.name(region) in GROUPS["people"]
                found += _templates("behind" if behind else "on", noun)
        return found

    def only_noun(self, region: Region) -> NounPhrase | None:
        """The noun of the only region of its kind."""
        alone = len(self.vocabulary.by_category[region.category.id]) == 1
        return self.vocabulary.definite(region) if alone and not region.crowd else None

    def action(self, person: Region, item: Region, noun: NounPhrase) -> list[Distinction]:
        """`holding the racket`, `riding the horse`."""
        name = self.vocabulary.name(item)
        if self.vocabulary.name(person) not in GROUPS["people"]:
            return []
        if name in GROUPS["ridden"] and person.y < item.y:
            return _templates("riding", noun)
        if name in GROUPS["worn"]:
            return _templates("wearing", noun)
        return _templates("holding", noun) if name in GROUPS["held"] else []

    def wrong(self) -> tuple[Region, Distinction] | None:
        """A thing and what would distinguish another of its kind, which is not there."""
        found: list[tuple[Region, Distinction]] = []
        for kind in self.vocabulary.by_category.values():
            region = kind[0]
            if not region.category.isthing or any(r.crowd for r in kind):
                continue
            if len(kind) < len(_ORDINALS):
                side = self.wording.choose(("left", "right"))
                found += [(region, d) for d in _templates("order", ordinal=_ORDINALS[len(kind)], side=side)]
            for side, other in (("left", "right"), ("right", "left")):
                if all(side in r.sides and abs(r.x - 0.5) > 0.15 for r in kind):
                    placed = [d for d in _templates(other) if d.after] if len(kind) == 1 else []
                    found += [(region, d) for d in placed]
                    found += [(region, d) for d in _templates("far", side=other)]
            if self.vocabulary.name(region) not in GROUPS["people"] and region.color_fractions:
                for n, color in enumerate(COLOR_NAMES):
                    if color in GROUPS["vivid"] and all(r.color_fractions[n] < 0.02 for r in kind):
                        found.append((region, Distinction(color)))
        return self.wording.choose(found) if found else None
