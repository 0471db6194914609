"""Photos to begin with: those that ship in scikit-image's wheel, where it is installed, and drawn scenes."""

import importlib.util
import io
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from ppmn.data.drawing import HEIGHT, WIDTH
from ppmn.data.narrate import Narrator
from ppmn.data.panoptic import PanopticImage
from ppmn.data.scenes import categories, draw_scene
from ppmn.serve.answers import Sample

PHOTOS = {
    "coffee.png": "In this image we can see a cup of coffee and a spoon on a red saucer, "
    "and the saucer is placed on a brown wooden table.",
    "astronaut.png": "In this picture there is a woman smiling and wearing an orange suit. "
    "Behind her there is a flag on the left side and a model of a space shuttle on the right side.",
    "chelsea.png": "In this image I can see a cat lying on a cloth. It has green eyes, a pink nose, "
    "white whiskers and brown fur.",
    "rocket.jpg": "In this image we can see a rocket on the launch pad and there are four towers around it. "
    "In the background there is the dark blue sky.",
}
SCENES = {"scene one": 3, "scene two": 11}  # names and seeds


@cache
def samples() -> tuple[Sample, ...]:
    folder = _photos()
    files = [f for f in PHOTOS if folder and (folder / f).is_file()]
    real = [Sample(name=f.split(".")[0], caption=PHOTOS[f]) for f in files]
    return (*real, *(Sample(name=name, caption=_scene(seed)[1]) for name, seed in SCENES.items()))


def sample_photo(number: int) -> bytes:
    """The file of a sample, by its place in the list."""
    name, folder = samples()[number].name, _photos()
    if name in SCENES:
        return _scene(SCENES[name])[0]
    assert folder is not None  # or the sample would not be listed
    return next(folder / file for file in PHOTOS if file.split(".")[0] == name).read_bytes()


def _photos() -> Path | None:
    package = importlib.util.find_spec("skimage")
    return Path(package.origin).parent / "data" if package and package.origin else None


@cache
def _scene(seed: int) -> tuple[bytes, str]:
    """A drawn scene as a file, and its narrative."""
    rng = np.random.default_rng(seed)
    scene = draw_scene(rng)
    image = PanopticImage(0, Path(), Path(), HEIGHT, WIDTH, scene.segments)
    told = Narrator(categories(), grounded=8)(image, scene.ids, scene.pixels, rng)
    buffer = io.BytesIO()
    Image.fromarray(scene.pixels).save(buffer, "PNG")
    return buffer.getvalue(), told.caption
