"""Regenerate the images of the documentation.

python -m experiments.docs_images [--model compact] [-o docs/images]

overlay.jpg and contact.jpg show photos of installed packages, page.jpg the saved page and serve.jpg the
server's page in headless chromium, serve_phone.jpg the same at the size of a phone, compact_scenes.jpg the
best, median and worst of 60 drawn scenes.
"""

import argparse
import shutil
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import ppmn
from bench.serve import serving
from ppmn.evaluation.evaluate import evaluate, model_answers
from ppmn.evaluation.figures import sheet
from ppmn.grounding.grounder import Grounder, load
from ppmn.samples import all_samples, sample_image
from ppmn.synthetic.scenes import write_scenes
from ppmn.training.sources import Source
from ppmn.training.validation import sheet_row

SAMPLE = "motorcycle"  # in overlay.jpg and page.jpg
PHONE = (390, 844)  # width and height
TILE_SIZE, LINE_HEIGHT = (480, 360), 20
SCENES, SEED = 60, 5
SHOWN_SCENES = 2  # of the best, the median and the worst


def contact_sheet(grounder: Grounder, file: Path) -> None:
    """The overlays of all sample photos with their captions."""
    width, height = TILE_SIZE
    sheet_size = (4 * width, 2 * (height + 3 * LINE_HEIGHT))
    picture = Image.new("RGB", sheet_size, "white")
    draw = ImageDraw.Draw(picture)
    photos = [sample for sample in all_samples() if sample.package != "ppmn"]
    for number, photo in enumerate(photos):
        image, caption = sample_image(photo.name)
        overlay = ppmn.overlay(grounder.ground(image, caption))
        overlay.thumbnail((width - 8, height))
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
