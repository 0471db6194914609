"""Make the images of the documentation: python -m experiments.docs_images [--model compact] [-o docs/images]

overlay.jpg and contact.jpg show photos of installed packages, page.jpg the saved page and serve.jpg the
server's in a headless chromium, compact_scenes.jpg the best, middle and worst of 60 drawn scenes.
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import ppmn
from bench.serve import serving
from ppmn.evaluation.evaluate import evaluate, model_answers
from ppmn.evaluation.figures import sheet
from ppmn.grounding.grounder import Grounder, load
from ppmn.samples import SAMPLE_PHOTOS, sample_image
from ppmn.synthetic.scenes import write_scenes
from ppmn.training.sources import open_sources
from ppmn.training.validation import row

SHOWN = "motorcycle"  # on its own, and on the pages
TILE, LINE = (480, 360), 20
SCENES, SEED, EACH = 60, 5, 2


def contact(grounder: Grounder, file: Path) -> None:
    """Overlays of all photos, two lines of the narrative under each."""
    picture = Image.new("RGB", (4 * TILE[0], 2 * (TILE[1] + 3 * LINE)), "white")
    draw = ImageDraw.Draw(picture)
    for number, photo in enumerate(SAMPLE_PHOTOS):
        path, narrative = sample_image(photo.name)
        overlay = ppmn.overlay(grounder.ground(path, narrative))
        overlay.thumbnail((TILE[0] - 8, TILE[1]))
        x, y = number % 4 * TILE[0], number // 4 * (TILE[1] + 3 * LINE)
        picture.paste(overlay, (x + (TILE[0] - overlay.width) // 2, y + TILE[1] - overlay.height))
        for n, words in enumerate(wrapped(narrative, 76)):
            draw.text((x + 8, y + TILE[1] + 4 + n * LINE), words, "black", font_size=12)
    picture.save(file, quality=85)


def wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f"{word} "
    return lines


def scenes(grounder: Grounder, file: Path) -> None:
    """The best, middle and worst of drawn scenes, by the mean IoU of their phrases."""
    with tempfile.TemporaryDirectory() as folder:
        write_scenes(Path(folder), SCENES, split="val", seed=SEED)
        (source,) = open_sources([folder])
        narratives = [source.narrative(n, 0) for n in range(len(source))]
        found = evaluate(model_answers(grounder), {"scenes": narratives}).metric
        print(f"drawn scenes: Average Recall (full) {found.compute().average_recall['overall']:.1f}")
        ious: dict[int, list[float]] = {}
        for key, phrase in found.measured.items():
            ious.setdefault(key.narrative, []).append(phrase.iou)
        order = sorted(ious, key=lambda n: -float(np.nanmean(ious[n])))
        middle = len(order) // 2
        chosen = [*order[:EACH], *order[middle : middle + EACH], *order[-EACH:]]
        by_index = {n.index: n for n in narratives}
        drawn = Path(folder) / "sheet.png"
        sheet([row(grounder, by_index[n]) for n in chosen], drawn)
        with Image.open(drawn) as picture:
            picture.convert("RGB").save(file, quality=85)


def screenshot(url: str, file: Path, *, chromium: str, ground: bool = False, height: int = 900) -> None:
    """A page in a headless browser; with `ground`, a sample is taken and grounded first."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page: Any = browser.new_page(viewport={"width": 1280, "height": height})
        page.goto(url)
        if ground:
            page.locator("#samples button").first.click()
            page.locator("#another").wait_for()
            page.click("#ground")
            expect(page.locator("#status")).to_contain_text("grounded", timeout=60_000)
        page.wait_for_timeout(500)
        page.screenshot(path=file, full_page=ground)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="compact", help="a model's name or folder")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/images"), help="folder of the images")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="the browser's program")
    args = parser.parse_args()
    grounder = load(args.model)
    grounding = grounder.ground(*sample_image(SHOWN))
    ppmn.overlay(grounding).save(args.out / "overlay.jpg", quality=85)
    contact(grounder, args.out / "contact.jpg")
    scenes(grounder, args.out / "compact_scenes.jpg")
    with tempfile.TemporaryDirectory() as folder:
        ppmn.save(grounding, folder, formats=["html"])
        (saved,) = Path(folder).glob("*.html")
        screenshot(saved.as_uri(), args.out / "page.jpg", chromium=args.chromium, height=640)
    with serving(args.model) as url:
        screenshot(url, args.out / "serve.jpg", chromium=args.chromium, ground=True)


if __name__ == "__main__":
    main()
