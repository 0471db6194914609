"""Captions for a whole split, written in the format of the PNG benchmark."""

from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ppmn.data.narratives import AnnotatedPhrase
from ppmn.data.panoptic import read_panoptic, splits
from ppmn.errors import InputError
from ppmn.files import write_json
from ppmn.images import read_image
from ppmn.synthetic.captions import GeneratedCaption
from ppmn.synthetic.narrator import Narrator, rng_for


def narrate_split(
    root: Path,
    split: str | None,
    out: Path,
    *,
    seed: int = 0,
    epoch: int = 0,
    negative_phrases: int = 0,
    incomplete: bool = False,
) -> tuple[int, int, int]:
    """Write one caption per image; return the numbers of captions, noun phrases and grounded ones.

    `incomplete` says that not all that the categories name is annotated, whatever the file says.
    """
    found = [split] if split else splits(root)
    if len(found) != 1:
        raise InputError(f"{root} has the splits {', '.join(found)}: name one as {root}:SPLIT")
    panoptic = read_panoptic(root, found[0])
    complete = panoptic.complete and not incomplete
    if not complete and not any(image.described for image in panoptic.images):
        raise InputError(
            f"{root}:{found[0]} is incomplete and no segment has expressions: nothing can be said"
        )
    narrator = Narrator(panoptic.categories, complete=complete)
    entries, phrases, grounded = [], 0, 0
    title = f"{root.name}:{panoptic.split}"
    for index, image in enumerate(tqdm(panoptic.images, unit="image", desc=title, disable=None)):
        pixels, ids = np.asarray(read_image(image.file)), image.ids()
        if pixels.shape[:2] != ids.shape:
            sizes = f"{pixels.shape[1]}x{pixels.shape[0]}, its segmentation {ids.shape[1]}x{ids.shape[0]}"
            raise InputError(f"{image.file} is {sizes}: they must be of one size")
        rng = rng_for(seed, epoch, index)
        generated = narrator(image, ids, pixels, rng, negative_phrases=negative_phrases)
        entries.append(narrative_entry(image.id, generated))
        phrases += len(generated.phrases)
        grounded += sum(bool(p.segment_ids) for p in generated.phrases)
    write_json(out, entries)
    return len(entries), phrases, grounded


def narrative_entry(image_id: int, generated: GeneratedCaption) -> dict[str, Any]:
    """A caption as an entry of `png_coco_<split>.json`: utterances that cover it."""
    caption, end = generated.caption, 0
    parts: list[tuple[str, AnnotatedPhrase | None]] = []
    for phrase in generated.phrases:
        parts += [(caption[end : phrase.start], None), (caption[phrase.start : phrase.end], phrase)]
        end = phrase.end
    parts.append((caption[end:], None))
    segments = [
        {
            "utterance": text.strip(),
            "segment_ids": [str(i) for i in phrase.segment_ids] if phrase else [],
            "plural": bool(phrase and phrase.plural),
            "noun": phrase is not None,
        }
        | ({"absent": True} if phrase and phrase.absent else {})
        for text, phrase in parts
        if text.strip()
    ]
    return {"image_id": str(image_id), "annotator_id": 0, "caption": caption, "segments": segments}
