"""Changes to a photo and its segments before it is narrated: pasted things, flips, crops, colours."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from ppmn.config import Augment
from ppmn.data.panoptic import IGNORE_ID, PanopticImage
from ppmn.images import read_image

SHARES = (0.003, 0.15)  # of its photo: how large a thing is that is pasted into another
SCALES = (0.6, 1.2)  # what it is brought to

View = tuple[PanopticImage, Image.Image, NDArray[np.int32]]  # ids (H, W)


def pasted(view: View, donor: PanopticImage, things: set[int], rng: np.random.Generator, most: int) -> View:
    """The photo with up to `most` things of another, of its `things` categories, cut out and put anywhere."""
    image, photo, ids = view
    area = donor.height * donor.width
    whole = [s for s in donor.segments if s.category_id in things and not s.iscrowd]
    fit = [s for s in whole if SHARES[0] * area < s.area < SHARES[1] * area]
    if not fit:
        return view
    theirs, their_ids = read_image(donor.file), donor.ids()
    photo, ids, segments = photo.copy(), ids.copy(), list(image.segments)
    for index in rng.permutation(len(fit))[:most]:
        segment, scale = fit[int(index)], rng.uniform(*SCALES)
        mask = Image.fromarray(their_ids == segment.id)
        if (box := mask.getbbox()) is None:
            continue
        size = (max(1, round((box[2] - box[0]) * scale)), max(1, round((box[3] - box[1]) * scale)))
        if size[0] > photo.width or size[1] > photo.height:
            continue
        mask = mask.crop(box).resize(size)
        x, y = int(rng.integers(photo.width - size[0] + 1)), int(rng.integers(photo.height - size[1] + 1))
        photo.paste(theirs.crop(box).resize(size, Image.Resampling.BILINEAR), (x, y), mask)
        id = max(int(ids[ids != IGNORE_ID].max(initial=0)), *(s.id for s in segments), 0) + 1
        inside = np.asarray(mask)
        ids[y : y + size[1], x : x + size[0]][inside] = id
        segments.append(replace(segment, id=id, area=int(inside.sum()), bbox=(x, y, *size)))
    return replace(image, segments=tuple(segments)), photo, ids


def changed_photo(
    photo: Image.Image, ids: NDArray[np.int32], rng: np.random.Generator, augment: Augment
) -> tuple[Image.Image, NDArray[np.int32]]:
    """Flipped and cropped at random, the photo and its ids alike."""
    if augment.flip and rng.random() < 0.5:
        photo, ids = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT), ids[:, ::-1]
    if augment.min_crop < 1:
        share = rng.uniform(augment.min_crop, 1)
        height, width = (max(1, round(side * share)) for side in ids.shape)
        top, left = int(rng.integers(len(ids) - height + 1)), int(rng.integers(ids.shape[1] - width + 1))
        photo = photo.crop((left, top, left + width, top + height))
        ids = ids[top : top + height, left : left + width]
    return photo, np.ascontiguousarray(ids)


def recoloured(photo: Image.Image, rng: np.random.Generator, share: float) -> Image.Image:
    """Brightness, contrast and saturation changed a little, after the colours have been told."""
    if share > 0:
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            photo = enhance(photo).enhance(float(rng.uniform(1 - share, 1 + share)))
    return photo
