"""Regenerate the images of the documentation.

python -m experiments.docs_images [--model compact] [-o docs/images]

overlay.jpg and contact.jpg show photos of installed packages, instances.jpg each such photo beside its mirror
image and what tells the two apart, page.jpg the saved page and serve.jpg the
server's page in headless chromium, serve_phone.jpg the same at the size of a phone, compact_scenes.jpg the
best, median and worst of 60 drawn scenes.
"""

import argparse
import shutil
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageOps

import ppmn
from bench.serve import serving
from ppmn.evaluation.evaluate import evaluate, model_answers
from ppmn.evaluation.figures import sheet
from ppmn.grounding.grounder import Grounder, load
from ppmn.images import read_image
from ppmn.samples import all_samples, sample_image
from ppmn.synthetic.scenes import write_scenes
from ppmn.training.sources import Source
from ppmn.training.validation import sheet_row

SAMPLE = "motorcycle"  # in overlay.jpg and page.jpg
PHONE = (390, 844)  # width and height
TILE_SIZE, LINE_HEIGHT = (480, 360), 20
SCENES, SEED = 60, 5
TWO_OF_A_KIND = (  # a sample, how often it stands in the picture, and a caption
    ("motorcycle", 2, "[the motorcycle on the left] and [the motorcycle on the right]"),
    ("coffee", 2, "[the cup on the left] and [the cup on the right]"),
    ("astronaut", 2, "[the woman on the left] and [the woman on the right]"),
    ("chelsea", 2, "[the cat on the left] and [the cat on the right]"),
    ("rocket", 2, "[the left rocket] and [the right rocket]"),
    ("flower", 2, "[the left flower] and [the right flower]"),
    ("chelsea", 3, "[the cat in the middle]"),
    ("coffee", 3, "[the second cup from the left] and [the rightmost cup]"),
)
SHOWN_SCENES = 2  # of the best, the median and the worst


def contact_sheet(grounder: Grounder, file: Path) -> None:
    """The overlays of all sample photos with their captions."""
    photos = [sample for sample in all_samples() if sample.package != "ppmn"]
    tiles = [sample_image(photo.name) for photo in photos]
    captioned_tiles(grounder, [(read_image(image), caption) for image, caption in tiles], file)


def instance_sheet(grounder: Grounder, file: Path) -> None:
    """Pictures with several things of one kind, and the masks of those that are asked for."""
    tiles = []
    for name, count, caption in TWO_OF_A_KIND:
        photo = read_image(sample_image(name)[0])
        copies = [ImageOps.mirror(photo) if n % 2 else photo for n in range(count)]
        picture = Image.new("RGB", (count * photo.width, photo.height))
        for n, copy in enumerate(copies):
            picture.paste(copy, (n * photo.width, 0))
        tiles.append((picture, caption))
    captioned_tiles(grounder, tiles, file)


def captioned_tiles(grounder: Grounder, tiles: Sequence[tuple[Image.Image, str]], file: Path) -> None:
    """Overlays with their captions, four in a row."""
    width = TILE_SIZE[0]
    overlays = [ppmn.overlay(grounder.ground(image, caption)) for image, caption in tiles]
    for overlay in overlays:
        overlay.thumbnail((width - 8, TILE_SIZE[1]))
    height = max(overlay.height for overlay in overlays)
    rows = -(-len(tiles) // 4)
    picture = Image.new("RGB", (4 * width, rows * (height + 3 * LINE_HEIGHT)), "white")
    draw = ImageDraw.Draw(picture)
    for number, (overlay, (_, caption)) in enumerate(zip(overlays, tiles, strict=True)):
        x, y = number % 4 * width, number // 4 * (height + 3 * LINE_HEIGHT)
        picture.paste(overlay, (x + (width - overlay.width) // 2, y + height - overlay.height))
        for n, line in enumerate(textwrap.wrap(caption, 76)):
            draw.text((x + 8, y + height + 4 + n * LINE_HEIGHT), line, "black", font_size=12)
    picture.save(file, quality=85)


def scene_sheet(grounder: Grounder, file: Path) -> None:
    """The best, median and worst of drawn scenes, by the mean IoU of their phrases."""
    with tempfile.TemporaryDirectory() as folder:
        write_scenes(Path(folder), SCENES, split="val", seed=SEED)
        source = Source(Path(folder), "val")
        narratives = [source.narrative(n, 0) for n in range(len(source))]
        found = evaluate(model_answers(grounder), {"scenes": narratives}).metric
        print(f"drawn scenes: Average Recall (full) {found.compute().average_recall['overall']:.1f}")
        ious: dict[int, list[float]] = {}
        for key, phrase in found.phrase_scores.items():
            ious.setdefault(key.narrative, []).append(phrase.iou)
        order = sorted(ious, key=lambda n: -float(np.nanmean(ious[n])))
        middle = len(order) // 2
        chosen = [*order[:SHOWN_SCENES], *order[middle : middle + SHOWN_SCENES], *order[-SHOWN_SCENES:]]
        by_index = {n.index: n for n in narratives}
        drawn = Path(folder) / "sheet.png"
        sheet([sheet_row(grounder, by_index[n]) for n in chosen], drawn)
        with Image.open(drawn) as picture:
            picture.convert("RGB").save(file, quality=85)


def screenshot(
    url: str, file: Path, *, chromium: str, ground: bool = False, size: tuple[int, int] = (1280, 900)
) -> None:
    """A page in a headless browser; with `ground`, after its first sample was grounded."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        width, height = size
        page: Any = browser.new_page(
            viewport={"width": width, "height": height}, is_mobile=size == PHONE, has_touch=size == PHONE
        )
        page.goto(url)
        if ground:
            page.locator("#samples button").first.click()
            expect(page.locator("#status")).to_contain_text("Found", timeout=60_000)
            page.mouse.move(2, 2)
        page.wait_for_timeout(500)
        page.screenshot(path=file, full_page=ground)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="compact", help="name or folder of a model (default: compact)")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/images"), help="folder of the images")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="program of the browser")
    args = parser.parse_args()
    grounder = load(args.model)
    grounding = grounder.ground(*sample_image(SAMPLE))
    ppmn.overlay(grounding).save(args.out / "overlay.jpg", quality=85)
    contact_sheet(grounder, args.out / "contact.jpg")
    instance_sheet(grounder, args.out / "instances.jpg")
    scene_sheet(grounder, args.out / "compact_scenes.jpg")
    with tempfile.TemporaryDirectory() as folder:
        ppmn.save(grounding, folder, formats=["html"])
        (saved,) = Path(folder).glob("*.html")
        screenshot(saved.as_uri(), args.out / "page.jpg", chromium=args.chromium, size=(1280, 640))
    with serving(args.model) as url:
        screenshot(url, args.out / "serve.jpg", chromium=args.chromium, ground=True)
        screenshot(url, args.out / "serve_phone.jpg", chromium=args.chromium, ground=True, size=PHONE)


if __name__ == "__main__":
    main()
