"""Random changes to an image and its segments before it is narrated: pasted things, flips, crops, colors."""

from dataclasses import replace

import numpy as np
from PIL import Image, ImageEnhance

from ppmn.config import Augment
from ppmn.data.panoptic import IGNORE_ID, PanopticImage
from ppmn.images import read_image
from ppmn.types import SegmentIds

PASTED_AREAS = (0.003, 0.15)  # fractions of its image between which a thing may be pasted elsewhere
PASTED_SCALES = (0.6, 1.2)  # that it is resized by

View = tuple[PanopticImage, Image.Image, SegmentIds]  # annotation, image, ids


def paste_things(
    view: View, donor: PanopticImage, things: set[int], rng: np.random.Generator, limit: int
) -> View:
    """Paste up to `limit` things of another image at random places; `things` are their categories."""
    annotation, image, ids = view
    area = donor.height * donor.width
    whole = [s for s in donor.segments if s.category_id in things and not s.iscrowd]
    fit = [s for s in whole if PASTED_AREAS[0] * area < s.area < PASTED_AREAS[1] * area]
    if not fit:
        return view
    donor_image, donor_ids = read_image(donor.file), donor.ids()
    image, ids, segments = image.copy(), ids.copy(), list(annotation.segments)
    for index in rng.permutation(len(fit))[:limit]:
        segment, scale = fit[int(index)], rng.uniform(*PASTED_SCALES)
        mask = Image.fromarray(donor_ids == segment.id)
        if (box := mask.getbbox()) is None:
            continue
        size = (max(1, round((box[2] - box[0]) * scale)), max(1, round((box[3] - box[1]) * scale)))
        if size[0] > image.width or size[1] > image.height:
            continue
        mask = mask.crop(box).resize(size)
        x, y = int(rng.integers(image.width - size[0] + 1)), int(rng.integers(image.height - size[1] + 1))
        image.paste(donor_image.crop(box).resize(size, Image.Resampling.BILINEAR), (x, y), mask)
        id = max(int(ids[ids != IGNORE_ID].max(initial=0)), *(s.id for s in segments), 0) + 1
        inside = np.asarray(mask)
        ids[y : y + size[1], x : x + size[0]][inside] = id
        segments.append(replace(segment, id=id, area=int(inside.sum()), bbox=(x, y, *size)))
    return replace(annotation, segments=tuple(segments)), image, ids


def flip_and_crop(
    image: Image.Image, ids: SegmentIds, rng: np.random.Generator, augment: Augment
) -> tuple[Image.Image, SegmentIds]:
    """A random flip and crop, the same for an image and its ids."""
    if augment.flip and rng.random() < 0.5:
        image, ids = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), ids[:, ::-1]
    if augment.min_crop < 1:
        fraction = rng.uniform(augment.min_crop, 1)
        height, width = (max(1, round(side * fraction)) for side in ids.shape)
        top, left = int(rng.integers(len(ids) - height + 1)), int(rng.integers(ids.shape[1] - width + 1))
        image = image.crop((left, top, left + width, top + height))
        ids = ids[top : top + height, left : left + width]
    return image, np.ascontiguousarray(ids)


def color_jitter(image: Image.Image, rng: np.random.Generator, limit: float) -> Image.Image:
    """Brightness, contrast and saturation changed at random, each by at most the fraction `limit`."""
    if limit > 0:
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = enhance(image).enhance(float(rng.uniform(1 - limit, 1 + limit)))
    return image
