"""The self-contained page in a real browser, where there is one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_ground import drawn

from ppmn.grounding.formats import save
from ppmn.grounding.result import Grounding

CAPTION = "[Two dogs] 😀 on the <b>[green grass]</b>, and a [red ball] under the [blue sky]"


@pytest.fixture
def grounding() -> Grounding:
    return drawn(CAPTION, width=320, height=200)


@pytest.fixture
def page(browser: Any, grounding: Grounding, tmp_path: Path) -> Iterator[Any]:
    (file,) = save(grounding, tmp_path, formats=["html"])
    page = browser.new_page(viewport={"width": 1100, "height": 700})
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    page.goto(file.as_uri())
    yield page
    assert said == []  # no error, nothing asked of the network
    page.close()


def lit(page: Any) -> list[str]:
    return page.locator("#list button.on span:nth-child(2)").all_inner_texts()


def test_the_masks_in_the_page_are_those_of_python(page: Any, grounding: Grounding) -> None:
    for number, phrase in enumerate(grounding):
        found = page.evaluate(
            f"Array.from({{length: W * H}}, (_, i) => inside(masks[{number}], i % W, Math.floor(i / W)))"
        )
        mask = np.array(found).reshape(phrase.mask.shape)
        assert (mask != phrase.mask).sum() <= 0.01 * phrase.area


def test_pointing_at_a_phrase_lights_it_and_dims_the_rest(page: Any, grounding: Grounding) -> None:
    assert page.locator("#caption").inner_text().replace("1", "").startswith("Two dogs")
    assert page.locator("#caption b").count() == 0 and "<b>" in page.locator("#caption").inner_text()
    page.hover("#caption [data-of='2']")
    assert lit(page) == ["red ball"]
    inside = np.argwhere(grounding[2].mask)[0]
    dim = page.evaluate("Array.from(paint.getImageData(W - 1, H - 1, 1, 1).data)")
    there = page.evaluate(f"Array.from(paint.getImageData({inside[1]}, {inside[0]}, 1, 1).data)")
    assert dim == [0, 0, 0, 165] and there[:3] != [0, 0, 0]
    page.mouse.move(1090, 690)
    assert lit(page) == []


def test_pointing_at_the_photo_lights_the_phrases_there(page: Any, grounding: Grounding) -> None:
    both = grounding[0].mask & grounding[1].mask
    y, x = np.argwhere(both)[len(np.argwhere(both)) // 2]
    scale = page.locator("#masks").bounding_box()["width"] / grounding.image.width
    page.hover("#masks", position={"x": (x + 0.5) * scale, "y": (y + 0.5) * scale}, force=True)
    wanted = [p.text for p in grounding if p.mask[y, x]]
    assert lit(page) == wanted and len(wanted) >= 2


def test_the_keyboard_is_enough(page: Any) -> None:
    page.keyboard.press("Tab")
    assert lit(page) == ["Two dogs"]
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # hold
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert lit(page) == ["green grass"]
    page.mouse.move(1090, 690)
    page.evaluate("document.activeElement.blur()")
    assert lit(page) == ["green grass"]
    page.keyboard.press("Escape")
    assert lit(page) == []


def test_it_fits_a_phone_and_the_dark(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 24, 26)"
