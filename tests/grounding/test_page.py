"""The saved page in a real browser."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import binary_erosion
from support.grounding import drawn
from support.visitor import accessibility_problems

from ppmn.grounding.formats import save
from ppmn.grounding.result import Grounding, Instance

CAPTION = "[Two dogs] 😀 on the <b>[green grass]</b>, and a [red ball] under the [blue sky]"


@pytest.fixture
def grounding() -> Grounding:
    grounding = drawn(CAPTION, width=320, height=200)
    sky = replace(grounding[3], presence=0.2, absent=True, threshold=1.0)
    x = np.arange(12)[None].repeat(8, 0)
    apart = [np.minimum(grounding[0].map, side.astype(np.float32)) for side in (x < 2, x > 2)]
    instances = tuple(Instance(map, grounding[0].geometry, grounding[0].threshold) for map in apart)
    dogs = replace(grounding[0], expected_iou=0.75, instances=instances)
    warnings = ("The caption seems to be German.",)
    return replace(grounding, phrases=(dogs, *grounding[1:3], sky), warnings=warnings, calibrated=True)


@pytest.fixture
def page(browser: Any, grounding: Grounding, tmp_path: Path) -> Iterator[Any]:
    (file,) = save(grounding, tmp_path, formats=["html"])
    page = browser.new_page(viewport={"width": 1100, "height": 700})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda request: problems.append(request.url) if request.url.startswith("http") else None
    )
    page.goto(file.as_uri())
    yield page
    assert problems == []  # no error, no request to the network
    page.close()


def highlighted(page: Any) -> list[str]:
    return page.locator("#list button.on > span:nth-child(2)").all_inner_texts()


def canvas(page: Any) -> np.ndarray:
    """The canvas over the image, (H, W, 4)."""
    height, width, values = page.evaluate(
        "() => { const { width, height } = masks;"
        " const { data } = masks.getContext('2d').getImageData(0, 0, width, height);"
        " return [height, width, Array.from(data)]; }"
    )
    return np.array(values).reshape(height, width, 4)


def test_page_masks_match_python(page: Any, grounding: Grounding) -> None:
    for number, phrase in enumerate(grounding):
        page.hover(f"#list li:nth-child({number + 1}) button")
        mask = canvas(page)[..., :3].any(-1)  # the rest is dimmed with black
        assert (mask != phrase.mask).sum() <= 0.01 * phrase.area


def test_phrase_highlights_its_mask(page: Any, grounding: Grounding) -> None:
    assert page.locator("#caption").inner_text().replace("1", "").startswith("Two dogs")
    assert page.locator("#caption b").count() == 0 and "<b>" in page.locator("#caption").inner_text()
    page.hover("#caption [data-phrases='2']")
    assert highlighted(page) == ["red ball"]
    assert canvas(page)[-1, -1].tolist() == [0, 0, 0, 165]
    page.mouse.move(1090, 690)
    assert highlighted(page) == []


def test_image_highlights_its_phrases(page: Any, grounding: Grounding) -> None:
    both = grounding[0].mask & grounding[1].mask
    y, x = np.argwhere(both)[len(np.argwhere(both)) // 2]
    scale = page.locator("#masks").bounding_box()["width"] / grounding.image.width
    page.hover("#masks", position={"x": (x + 0.5) * scale, "y": (y + 0.5) * scale}, force=True)
    wanted = [p.text for p in grounding if p.mask[y, x]]
    assert highlighted(page) == wanted and len(wanted) >= 2


def test_keyboard_only(page: Any) -> None:
    page.keyboard.press("Tab")
    assert highlighted(page) == ["Two dogs"]
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # pin
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert highlighted(page) == ["green grass"]
    page.mouse.move(1090, 690)
    page.evaluate("document.activeElement.blur()")
    assert highlighted(page) == ["green grass"]
    page.keyboard.press("Escape")
    assert highlighted(page) == []


def test_phone_width_and_dark_mode(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 24, 26)"


def test_warnings_and_absent_phrases(page: Any) -> None:
    assert page.inner_text("#warnings") == "The caption seems to be German."
    notes = page.locator("#list .score").all_inner_texts()
    assert notes[3] == "probably not in the image" and all("score" in note for note in notes[:3])
    assert page.locator("#figure .label").count() == 3


def test_a_foreign_caption_has_no_masks(browser: Any, grounding: Grounding, tmp_path: Path) -> None:
    phrases = tuple(replace(phrase, foreign=True, threshold=1.0, instances=()) for phrase in grounding)
    (file,) = save(replace(grounding, phrases=phrases), tmp_path, formats=["html"])
    page = browser.new_page()
    page.goto(file.as_uri())
    assert page.locator("#list .score").all_inner_texts() == ["not English"] * 4
    assert page.inner_text("#warnings") == "The caption seems to be German."
    assert page.locator("#figure .label").count() == 0 and not canvas(page)[..., 3].any()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.keyboard.press("Tab")  # one phrase is highlighted
    assert accessibility_problems(page) == []


def test_objects_are_counted_and_outlined(page: Any, grounding: Grounding) -> None:
    note = page.locator("#list .score").first
    assert "2 objects" in note.inner_text() and "0.75" in note.inner_text()
    titles = note.locator("[title]").evaluate_all("(all) => all.map((part) => part.title)")
    assert any("expected to have" in title for title in titles)
    page.hover("#list li:first-child button")
    inner = binary_erosion(grounding[0].mask, iterations=4)
    outlined = (canvas(page)[..., 3] == 255) & inner
    sides = [instance.mask for instance in grounding[0].instances]
    assert all((outlined & side).any() for side in sides)  # between the objects, not around the phrase
