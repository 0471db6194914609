"""Sample images with captions: photos that ship in other packages, and two drawn scenes of our own."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ppmn.errors import InputError


@dataclass(frozen=True)
class SampleImage:
    """An image file inside an installed package, and a caption of it."""

    name: str
    package: str  # the name it is imported by
    path: str  # inside the package
    caption: str

    @property
    def file(self) -> Path | None:
        """The image file; None if the package is not installed."""
        found = importlib.util.find_spec(self.package)
        if found is None or found.origin is None:
            return None
        file = Path(found.origin).parent / self.path
        return file if file.is_file() else None


SAMPLE_PHOTOS = (
    SampleImage(
        "motorcycle",
        "skimage",
        "data/motorcycle_left.png",
        "In this image there is a red motorcycle on the floor. Behind it there is a wooden bench, "
        "and on the right side we can see boxes on a shelf.",
    ),
    SampleImage(
        "china",
        "sklearn",
        "datasets/images/china.jpg",
        "In this picture there is a tower and in front of it we can see trees. "
        "In the background there is water, and at the top there is the sky.",
    ),
    SampleImage(
        "coffee",
        "skimage",
        "data/coffee.png",
        "In this image we can see a cup of coffee and a spoon on a red saucer, "
        "and the saucer is placed on a brown wooden table.",
    ),
    SampleImage(
        "astronaut",
        "skimage",
        "data/astronaut.png",
        "In this picture there is a woman smiling and wearing an orange suit. "
        "Behind her there is a flag on the left side and a model of a space shuttle on the right side.",
    ),
    SampleImage(
        "chelsea",
        "skimage",
        "data/chelsea.png",
        "In this image I can see a cat lying on a cloth. It has green eyes, a pink nose, "
        "white whiskers and brown fur.",
    ),
    SampleImage(
        "rocket",
        "skimage",
        "data/rocket.jpg",
        "In this image we can see a rocket on the launch pad and there are four towers around it. "
        "In the background there is the dark blue sky.",
    ),
    SampleImage(
        "flower",
        "sklearn",
        "datasets/images/flower.jpg",
        "In this image there are two orange flowers, and in the background we can see green leaves.",
    ),
    SampleImage(
        "grace_hopper",
        "matplotlib",
        "mpl-data/sample_data/grace_hopper.jpg",
        "In this picture we can see an old woman with glasses. She wears a cap and a black coat. "
        "On the left side there is a flag, and behind her there is a blue wall.",
    ),
)
SAMPLE_SCENES = (
    SampleImage(
        "scene one",
        "ppmn",
        "serve/static/samples/scene_one.png",
        "In this image we could see a yellow crown placed on the floor and wall with some designs. "
        "At the bottom of the image we can see few red chairs. On the left side we can find a green leaf. "
        "In the foreground of the image we can see a blue bus and a hanger. "
        "In the back we can see two plants kept on the floor. There are few other items.",
    ),
    SampleImage(
        "scene two",
        "ppmn",
        "serve/static/samples/scene_two.png",
        "This image consists of a road with markings in the middle, a purple hat on the sand "
        "and a wooden plank. On the right side, we can observe a cloud and a kite. "
        "In the background of this image, we can observe the orange sky. "
        "The background of the image is blurred.",
    ),
)


@cache
def installed_samples() -> tuple[SampleImage, ...]:
    """The samples whose files are present."""
    return tuple(sample for sample in (*SAMPLE_PHOTOS, *SAMPLE_SCENES) if sample.file)


def sample_image(name: str) -> tuple[Path, str]:
    """The file and the caption of a sample."""
    sample = next(sample for sample in (*SAMPLE_PHOTOS, *SAMPLE_SCENES) if sample.name == name)
    if sample.file is None:
        raise InputError(f"the sample {name} is in the package {sample.package}, which is not installed")
    return sample.file, sample.caption
