"""Left and right: two objects of one kind on held-out images, and whether the one that is meant is found.

python -m experiments.measure_left_right --model compact [--model DIR] --data-root PHOTOS [--images 100]

An image counts for each of its thing categories that has exactly two segments, none of them a crowd, each
at least 1 % of the image, the centers of their boxes at least a fifth of the width apart. The captions are
"X on the left" and "X on the right". Inside: the whole caption is the phrase; outside: only X is.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from experiments import probes as shared
from experiments.probes import Probe
from ppmn.data.panoptic import Panoptic, PanopticImage, Segment
from ppmn.grounding.grounder import Grounder
from ppmn.synthetic.nouns import base_name

SOURCES = ("coco_panoptic", "coco_things", "coco_traffic", "coco_people", "coco_instances")
MIN_AREA, MIN_DISTANCE = 0.01, 0.2  # fractions of the image's area and width
Pair = tuple[Probe, Probe]  # left, right


def center(segment: Segment) -> float:
    x, _, width, _ = segment.bbox
    return x + width / 2


def two_of_a_kind(panoptic: Panoptic, image: PanopticImage) -> Iterator[tuple[str, Segment, Segment]]:
    """A noun, the left and the right segment."""
    kinds: dict[int, list[Segment]] = defaultdict(list)
    for segment in image.segments:
        kinds[segment.category_id].append(segment)
    for category_id, segments in kinds.items():
        category = panoptic.categories[category_id]
        if not category.isthing or len(segments) != 2 or any(s.iscrowd for s in segments):
            continue
        left, right = sorted(segments, key=center)
        large = min(left.area, right.area) >= MIN_AREA * image.height * image.width
        if large and center(right) - center(left) >= MIN_DISTANCE * image.width:
            yield base_name(category.name), left, right


def find_pairs(sources: Sequence[Panoptic], where: str) -> list[Pair]:
    """The probes for both objects of every pair; `where` the place is: inside or outside of the phrase."""
    pairs = []
    for panoptic in sources:
        for image in panoptic.images:
            for noun, left, right in two_of_a_kind(panoptic, image):
                made = []
                for side, segment in (("left", left), ("right", right)):
                    caption = f"{noun} on the {side}"
                    span = (0, len(caption) if where == "inside" else len(noun))
                    made.append(Probe(image, caption, span, (segment.id,), where))
                pairs.append((made[0], made[1]))
    return pairs


def measure_pairs(grounder: Grounder, pairs: Sequence[Pair]) -> dict[str, dict[str, Any]]:
    """Percentages of the objects found, and of the pairs of which both are."""
    found = [value >= 0.5 for value in shared.measure(grounder, [p for pair in pairs for p in pair])]
    rows = {}
    for where in ("inside", "outside"):
        numbers = [n for n, (left, _) in enumerate(pairs) if left.row == where]
        images = [pairs[n][0].image.file for n in numbers]
        both = [found[2 * n] and found[2 * n + 1] for n in numbers]
        single = [found[i] for n in numbers for i in (2 * n, 2 * n + 1)]
        each = shared.percentage(single, [file for file in images for _ in range(2)])
        rows[where] = {"each": each, "both": shared.percentage(both, images), "pairs": len(numbers)}
    return rows


def main() -> None:
    args = shared.parse_arguments(__doc__, lambda parser: None)
    sources = shared.held_out_sources(args.data_root, SOURCES)
    pairs = [pair for where in ("inside", "outside") for pair in find_pairs(sources, where)]
    kept = {p.image.file for p in shared.limited([left for left, _ in pairs], args.images, args.seed)}
    pairs = [pair for pair in pairs if pair[0].image.file in kept]
    results = {
        name: measure_pairs(grounder, pairs) for name, grounder in shared.load_models(args.model).items()
    }
    rows = [
        [name, where, shared.cell(row["each"]), shared.cell(row["both"]), f"{row['pairs']:,}"]
        for name, measured in results.items()
        for where, row in measured.items()
    ]
    print(shared.show(["model", "place", "object found", "both found", "pairs"], rows))
    shared.write(args.json, {"sources": SOURCES, "seed": args.seed, "images": len(kept), "models": results})


if __name__ == "__main__":
    main()
