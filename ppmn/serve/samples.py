"""Photos to begin with: those of installed packages, and drawn scenes."""

import io
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from ppmn.data.panoptic import PanopticImage
from ppmn.samples import PHOTOS, registry_photo
from ppmn.serve.schemas import Sample
from ppmn.synthetic.drawing import SCENE_HEIGHT, SCENE_WIDTH
from ppmn.synthetic.narrator import Narrator
from ppmn.synthetic.scenes import draw_scene, scene_categories

SCENES = {"scene one": 3, "scene two": 11}  # names and seeds


@cache
def samples() -> tuple[Sample, ...]:
    real = [Sample(name=photo.name, caption=photo.narrative) for photo in PHOTOS if photo.file]
    return (*real, *(Sample(name=name, caption=_scene(seed)[1]) for name, seed in SCENES.items()))


def sample_photo(number: int) -> bytes:
    """The file of a sample, by its place in the list."""
    name = samples()[number].name
    return _scene(SCENES[name])[0] if name in SCENES else registry_photo(name)[0].read_bytes()


@cache
def _scene(seed: int) -> tuple[bytes, str]:
    """A drawn scene as a file, and its narrative."""
    rng = np.random.default_rng(seed)
    scene = draw_scene(rng)
    image = PanopticImage(0, Path(), Path(), SCENE_HEIGHT, SCENE_WIDTH, scene.segments)
    told = Narrator(scene_categories(), grounded=8)(image, scene.ids, scene.pixels, rng)
    buffer = io.BytesIO()
    Image.fromarray(scene.pixels).save(buffer, "PNG")
    return buffer.getvalue(), told.caption
