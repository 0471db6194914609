"""Sample images with captions: photos that ship in other packages, and two drawn scenes of our own."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ppmn.errors import InputError
from ppmn.files import read_json


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


def all_samples() -> list[SampleImage]:
    """The samples that `samples.json` lists."""
    return [SampleImage(**row) for row in read_json(Path(__file__).with_suffix(".json"))]


@cache
def installed_samples() -> tuple[SampleImage, ...]:
    """The samples whose files are present."""
    return tuple(sample for sample in all_samples() if sample.file)


def sample_image(name: str) -> tuple[Path, str]:
    """The file and the caption of a sample."""
    sample = next(sample for sample in all_samples() if sample.name == name)
    if sample.file is None:
        raise InputError(f"the sample {name} is in the package {sample.package}, which is not installed")
    return sample.file, sample.caption
