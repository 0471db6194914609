"""`make demo`: ground a caption on a photo that ships in scikit-image."""

from pathlib import Path

from ppmn import cli
from ppmn.samples import sample_image


def main(model: str = "compact", out: Path = Path("demo")) -> int:
    """Ground the caption and print where the overlay and the page are."""
    image, caption = sample_image("motorcycle")
    return cli.main(["ground", str(image), caption, "--model", model, "-o", str(out)])


if __name__ == "__main__":
    raise SystemExit(main())
