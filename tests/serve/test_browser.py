"""The page in a real browser, from the image to the downloads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pycocotools import mask as coco_mask
from support.serving import CAPTION, drawn_image, image_bytes, metric, running, small_model, upload
from support.visitor import Visitor, playwright

import ppmn

TEXTS = ["two dogs", "green grass", "red ball", "blue sky"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(ppmn.load(small_model(tmp_path_factory.mktemp("model")))) as client:
        yield client


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "image.png"
    path.write_bytes(image_bytes(drawn_image(480, 320)))
    return path


@pytest.fixture
def visitor(browser: Any, server: httpx.Client) -> Iterator[Visitor]:
    visitor = Visitor(browser, server)
    yield visitor
    visitor.close()


def decoded(answer: dict[str, Any], number: int) -> np.ndarray:
    return coco_mask.decode(answer["phrases"][number]["rle"]).astype(bool)


def test_upload_write_ground(visitor: Visitor, file: Path) -> None:
    page = visitor.page
    visitor.upload(file)
    visitor.write(CAPTION, 4)
    assert (
        page.locator("#underlines [data-phrases]").all_inner_texts() == TEXTS
    )  # underlined, not grounded yet
    assert not [r for r in visitor.requests if r.endswith("/ground")]
    visitor.ground()
    assert [t.split()[0] for t in page.locator("#figure .label").all_inner_texts()] != []
    scores = page.locator("#phrases .score").all_inner_texts()
    assert all("score" in score or score == "no mask" for score in scores) and "score" in "".join(scores)
    assert visitor.canvas()[..., 3].any()
    visitor.screenshot("light")


def test_hover_highlights_phrases_and_masks(visitor: Visitor, file: Path) -> None:
    page = visitor.page
    visitor.upload(file)
    visitor.write(CAPTION, 4)
    visitor.ground()
    page.hover("#phrases li:nth-child(3) .phrase")
    assert visitor.highlighted() == ["red ball"]
    assert page.locator("#underlines .on").all_inner_texts() == ["red ball"]
    assert page.locator("#figure .label.on").all_inner_texts() in ([], ["3 red ball"])
    dimmed = visitor.canvas()
    mask = visitor.mask(2)
    assert (dimmed[~mask] == [0, 0, 0, 160]).all() and (dimmed[mask][:, :3] != 0).any()
    word = page.locator("#underlines [data-phrases='0']").bounding_box()
    page.mouse.move(word["x"] + word["width"] / 2, word["y"] + word["height"] / 2)
    assert visitor.highlighted() == ["two dogs"]
    area = page.locator("#masks").bounding_box()
    x, y = 200, 150
    page.mouse.move(area["x"] + (x + 0.5) / 480 * area["width"], area["y"] + (y + 0.5) / 320 * area["height"])
    id = visitor.state("state.image.id")
    answer = visitor.server.post(f"/api/images/{id}/ground", json={"caption": CAPTION}).json()
    there = [p["text"] for n, p in enumerate(answer["phrases"]) if decoded(answer, n)[y, x]]
    assert visitor.highlighted() == there  # several may share a pixel
    page.mouse.move(2, 2)
    assert visitor.highlighted() == []


def test_sliders_need_no_request(visitor: Visitor, file: Path) -> None:
    visitor.upload(file)
    visitor.write(CAPTION, 4)
    visitor.ground()
    before = len(visitor.requests)
    first = visitor.canvas()
    areas = visitor.state("state.phrases.map((p) => p.result.mask.area)")
    visitor.slide("threshold", 0.6)
    assert sum(visitor.state("state.phrases.map((p) => p.result.mask.area)")) < sum(areas)
    visitor.slide("threshold", 0.5)
    np.testing.assert_array_equal(visitor.canvas(), first)
    visitor.slide("opacity", 0.2)
    fainter = visitor.canvas()[..., 3]
    assert set(np.unique(fainter)) == {0, 51, 255}
    visitor.page.uncheck("#outline")
    assert set(np.unique(visitor.canvas()[..., 3])) == {0, 51}
    assert visitor.requests[before:] == []


@pytest.mark.parametrize("threshold", [0.5, 0.55])
def test_browser_masks_match_server(visitor: Visitor, file: Path, threshold: float) -> None:
    visitor.upload(file)
    visitor.write(CAPTION, 4)
    visitor.ground()
    visitor.slide("threshold", 0.9)
    visitor.slide("threshold", threshold)
    id = visitor.state("state.image.id")
    body = {"caption": CAPTION, "threshold": threshold}
    answer = visitor.server.post(f"/api/images/{id}/ground", json=body).json()
    for number, phrase in enumerate(answer["phrases"]):
        mask = visitor.mask(number)
        wanted = decoded(answer, number)
        assert (mask != wanted).sum() <= 0.01 * wanted.sum()
        assert visitor.state(f"state.phrases[{number}].result.mask.score") == pytest.approx(
            phrase["score"], abs=0.005
        )


def test_rounds_view(visitor: Visitor, file: Path) -> None:
    page = visitor.page
    visitor.upload(file)
    visitor.write(CAPTION, 4)
    visitor.ground()
    page.check("input[value=rounds]", force=True)
    playwright.expect(page.locator("#round-note")).to_contain_text(
        "H2, the response of “two dogs” after round 2"
    )
    pictures = []
    for step in (0, 1, 2):
        visitor.slide("round", step)
        playwright.expect(page.locator("output[for=round]")).to_have_text(f"H{step} of H2")
        pictures.append(visitor.canvas())
    assert (pictures[0] != pictures[1]).any() and (pictures[1] != pictures[2]).any()
    note = playwright.expect(page.locator("#round-note"))
    note.to_have_text("H2, the response of “two dogs” after round 2. This is the last map.")
    visitor.state("state.grounding.rounds.push(state.grounding.rounds[2])")  # as of a model that points
    visitor.slide("round", 0)
    note.to_contain_text("language-compatible pixels")
    visitor.slide("round", 2)
    note.to_have_text("H2, the response of “two dogs” after round 2.")
    visitor.slide("round", 3)
    note.to_have_text("H3, the drawn map of “two dogs”. This is the last map.")
    visitor.screenshot("rounds")
    page.hover("#phrases li:nth-child(2) .phrase")
    playwright.expect(page.locator("#round-note")).to_contain_text("“green grass”")


def test_add_and_remove_phrases(visitor: Visitor, file: Path) -> None:
    page = visitor.page
    visitor.upload(file)
    visitor.write("a 😀 dog sits on the [green grass] near it", 1)  # brackets mark all there are
    visitor.write("a 😀 dog sits on the green grass near it", 2)
    encoded = metric(visitor.server, "ppmn_images_encoded_total")
    page.click("[aria-label='Remove green grass']")
    assert page.locator("#underlines [data-phrases]").all_inner_texts() == ["dog"]
    page.locator("#caption").evaluate("(e) => { e.focus(); e.setSelectionRange(9, 13); }")  # "sits"
    page.get_by_role("button", name="Add “sits”").click()
    assert page.locator("#phrases .text").all_inner_texts() == ["dog", "sits"]
    visitor.ground()
    assert visitor.state("state.grounding.spans") == [[4, 7], [8, 12]]  # code points, as the server counts
    page.locator("#caption").evaluate("(e) => { e.focus(); e.setSelectionRange(6, 6); }")
    page.get_by_role("button", name="Remove “dog”").click()
    assert page.locator("#phrases .text").all_inner_texts() == ["sits"]
    page.locator("#caption").press("Home")
    page.keyboard.type("so ")  # what was marked moves along
    assert page.locator("#underlines [data-phrases]").all_inner_texts() == ["sits"]
    playwright.expect(page.locator("#note")).to_contain_text("changed")
    visitor.ground()
    assert metric(visitor.server, "ppmn_images_encoded_total") == encoded


def test_keyboard_only(visitor: Visitor, file: Path) -> None:
    page = visitor.page
    page.on("filechooser", lambda chooser: None)  # from now on it is ours to answer

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("(s) => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"{selector} is not reached with Tab")

    tab_to(".choose")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(file)
    page.locator("#another").wait_for()
    tab_to("#caption")
    page.keyboard.type(CAPTION)
    page.keyboard.press("Control+Enter")
    visitor.wait_for_results()
    tab_to("#phrases li:nth-child(2) .phrase")
    assert visitor.highlighted() == ["green grass"]
    page.keyboard.press("Enter")
    tab_to("[data-file='coco.json']")
    assert visitor.highlighted() == ["green grass"]  # held
    page.keyboard.press("Escape")
    assert visitor.highlighted() == []
    tab_to("#threshold")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("output[for=threshold]") == "0.51"
    tab_to("#caption")
    page.keyboard.press("Control+Home")
    page.keyboard.press("Control+Shift+ArrowRight")
    tab_to("#add")
    page.keyboard.press("Enter")
    assert page.locator("#phrases li").count() == 5
    tab_to("[aria-label='Remove blue sky']")
    page.keyboard.press("Enter")
    assert page.locator("#phrases li").count() == 4


def test_phone_width(browser: Any, server: httpx.Client, file: Path) -> None:
    options = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
    visitor = Visitor(browser, server, **options)
    visitor.upload(file)
    visitor.write(CAPTION, 4)
    visitor.page.tap("#find")
    visitor.wait_for_results()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == 360
    for selector in ("#find", ".remove", ".switch", ".only", ".phrase", "[data-file]"):
        box = visitor.page.locator(selector).first.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["height"] >= 40
    visitor.page.tap("#phrases li:nth-child(2) .phrase")
    assert visitor.highlighted() == ["green grass"]
    visitor.screenshot("phone")
    visitor.close()


@pytest.mark.parametrize(
    "caption",
    [
        "<script>alert(1)</script><img src=x onerror=alert(2)> a dog",
        "הכלב [על הדשא] كلب",
        "a dog 👩‍👩‍👧 and a cat",
    ],
    ids=["script", "right to left", "emoji"],
)
def test_caption_is_never_html(visitor: Visitor, file: Path, caption: str) -> None:
    visitor.upload(file)
    visitor.write(caption)
    playwright.expect(visitor.page.locator("#phrases li").first).to_be_visible()
    visitor.ground()
    assert visitor.page.locator("#underlines").inner_text().rstrip("\u200b\n") == caption
    assert visitor.page.locator("#underlines img, #underlines script, #phrases img, .label img").count() == 0
    for switch in visitor.page.get_by_role("switch", checked=False).all():  # captions that are not English
        switch.click()
    assert b"<script>alert" not in visitor.download("page.html")


def test_errors_are_shown(visitor: Visitor, tmp_path: Path, file: Path) -> None:
    page, status = visitor.page, playwright.expect(visitor.page.locator("#status"))
    page.click("#find")
    status.to_contain_text("There is no photo yet")
    (tmp_path / "image.png").write_bytes(b"PK\3\4 not an image")
    page.set_input_files("#file", tmp_path / "image.png")
    status.to_contain_text("not an image in a format that can be read")
    assert page.locator("#empty").is_visible()
    visitor.upload(file)
    page.click("#find")
    status.to_contain_text("There is no caption yet")
    visitor.write("[a dog")
    playwright.expect(page.locator("#note")).to_contain_text("bracket is opened and not closed")


def test_evicted_image_is_sent_again(visitor: Visitor, file: Path) -> None:
    visitor.upload(file)
    for seed in range(40):  # more than the cache holds
        upload(visitor.server, image_bytes(drawn_image(24, 16, 1000 + seed)))
    visitor.write(CAPTION, 4)
    visitor.ground()
    assert visitor.requests.count("POST /api/images") == 2


def test_token_dialog(browser: Any, tmp_path: Path) -> None:
    with running(ppmn.load(small_model(tmp_path)), token="secret-word") as client:
        page = browser.new_context().new_page()
        page.goto(f"{client.base_url}/?token=secret-word")
        page.locator("#samples img").first.wait_for()
        assert "secret-word" not in page.url
        page = browser.new_context().new_page()
        page.goto(str(client.base_url))
        page.fill("#token", "secret-word")
        page.keyboard.press("Enter")
        page.locator("#samples img").first.wait_for()
        page.goto(f"{client.base_url}/docs")
        playwright.expect(page.get_by_text("POST /api/images/{id}/ground")).to_be_visible()
