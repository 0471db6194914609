"""Photos that ship in packages of the registry, each with a narrative: to begin with, and to show."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ppmn.errors import InputError


@dataclass(frozen=True)
class RegistryPhoto:
    """A photo inside of an installed package."""

    name: str
    package: str  # as it is imported
    place: str  # inside of the package
    narrative: str

    @property
    def file(self) -> Path | None:
        """Where it is; None where the package is not installed."""
        found = importlib.util.find_spec(self.package)
        file = Path(found.origin).parent / self.place if found and found.origin else None
        return file if file and file.is_file() else None


PHOTOS = (
    RegistryPhoto(
        "motorcycle",
        "skimage",
        "data/motorcycle_left.png",
        "In this image there is a red motorcycle on the floor. Behind it there is a wooden bench, "
        "and on the right side we can see boxes on a shelf.",
    ),
    RegistryPhoto(
        "china",
        "sklearn",
        "datasets/images/china.jpg",
        "In this picture there is a tower and in front of it we can see trees. "
        "In the background there is water, and at the top there is the sky.",
    ),
    RegistryPhoto(
        "coffee",
        "skimage",
        "data/coffee.png",
        "In this image we can see a cup of coffee and a spoon on a red saucer, "
        "and the saucer is placed on a brown wooden table.",
    ),
    RegistryPhoto(
        "astronaut",
        "skimage",
        "data/astronaut.png",
        "In this picture there is a woman smiling and wearing an orange suit. "
        "Behind her there is a flag on the left side and a model of a space shuttle on the right side.",
    ),
    RegistryPhoto(
        "chelsea",
        "skimage",
        "data/chelsea.png",
        "In this image I can see a cat lying on a cloth. It has green eyes, a pink nose, "
        "white whiskers and brown fur.",
    ),
    RegistryPhoto(
        "rocket",
        "skimage",
        "data/rocket.jpg",
        "In this image we can see a rocket on the launch pad and there are four towers around it. "
        "In the background there is the dark blue sky.",
    ),
    RegistryPhoto(
        "flower",
        "sklearn",
        "datasets/images/flower.jpg",
        "In this image there are two orange flowers, and in the background we can see green leaves.",
    ),
    RegistryPhoto(
        "grace_hopper",
        "matplotlib",
        "mpl-data/sample_data/grace_hopper.jpg",
        "In this picture we can see an old woman with glasses. She wears a cap and a black coat. "
        "On the left side there is a flag, and behind her there is a blue wall.",
    ),
)


def registry_photo(name: str) -> tuple[Path, str]:
    """The file of a photo by its name, and its narrative."""
    photo = next(p for p in PHOTOS if p.name == name)
    if photo.file is None:
        raise InputError(f"the photo {name} is in the package {photo.package}, which is not installed")
    return photo.file, photo.narrative
