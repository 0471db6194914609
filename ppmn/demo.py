"""`make demo`: ground a caption on the first sample image that is installed; one is in every installation."""

from pathlib import Path

from ppmn import cli
from ppmn.samples import installed_samples


def main(model: str = "compact", out: Path = Path("demo")) -> int:
    """Ground the caption and print where the overlay and the page are."""
    sample = installed_samples()[0]
    return cli.main(["ground", str(sample.file), sample.caption, "--model", model, "-o", str(out)])


if __name__ == "__main__":
    raise SystemExit(main())
