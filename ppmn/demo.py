"""`make demo`: ground a narrative on a real photo that ships in scikit-image's wheel."""

from pathlib import Path

from ppmn.samples import registry_photo


def main(model: str = "compact", output: Path = Path("demo")) -> int:
    """Ground a narrative on a real photo, and say where the overlay and the page are."""
    from ppmn.cli import main as ppmn

    photo, narrative = registry_photo("motorcycle")
    return ppmn(["ground", str(photo), narrative, "--model", model, "-o", str(output)])


if __name__ == "__main__":
    raise SystemExit(main())
