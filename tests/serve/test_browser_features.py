"""Features of the page in a real browser, at the sizes of a desktop and of a phone."""

import contextlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask
from support.serving import CAPTION, drawn_image, image_bytes, running, set_answers, set_presence, small_model
from support.visitor import SHOTS, Visitor, playwright

import ppmn

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
DEVICES: dict[str, dict[str, Any]] = {"desktop": {}, "phone": PHONE}
TEXTS = ["two dogs", "green grass", "red ball", "blue sky"]
GERMAN = "Ein [Hund] und eine [Katze] auf der Wiese."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(ppmn.load(small_model(tmp_path_factory.mktemp("model")))) as client:
        yield client


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    for number, size in enumerate([(480, 320), (300, 400)]):
        (folder / f"{number}.png").write_bytes(image_bytes(drawn_image(*size, seed=number)))
    return sorted(folder.iterdir())


@pytest.fixture(params=DEVICES)
def visitor(request: pytest.FixtureRequest, browser: Any, server: httpx.Client) -> Iterator[Visitor]:
    visitor = Visitor(browser, server, **DEVICES[request.param])
    visitor.device = request.param
    yield visitor
    visitor.close()


@pytest.fixture
def grounded(visitor: Visitor, files: list[Path]) -> Visitor:
    visitor.upload(files[0])
    visitor.write(CAPTION, 4)
    visitor.ground()
    return visitor


def hold(page: Any, path: str) -> list[Any]:
    """Requests to a path wait here until `continue_` is called on them."""
    held: list[Any] = []

    def keep(route: Any) -> None:
        held.append(route)

    page.route(path, keep)
    return held


def wait_for_request(page: Any, held: list[Any]) -> None:
    while not held:
        page.wait_for_timeout(20)


def test_photo_appears_before_the_server_answers(grounded: Visitor, files: list[Path]) -> None:
    page, status = grounded.page, playwright.expect(grounded.page.locator("#status"))
    held = hold(page, "**/api/images")
    page.set_input_files("#file", files[1])
    wait_for_request(page, held)
    grounded.wait_until("document.getElementById('image').naturalWidth === 300")
    assert page.locator("#figure").is_visible() and not grounded.canvas()[..., 3].any()
    status.to_have_text("Encoding the photo …")
    page.click("#find")  # while the photo is encoded
    status.to_have_text("Finding the phrases …")
    page.locator("#caption").press("End")
    page.keyboard.type(" And a cat")
    playwright.expect(page.locator("#phrases li")).to_have_count(5)
    page.locator("#caption").press("End")
    page.keyboard.type(" [")
    playwright.expect(page.locator("#note")).to_contain_text("not closed")
    status.to_have_text("Finding the phrases …")  # typing does not overwrite the progress
    page.keyboard.press("Backspace")
    assert not grounded.canvas()[..., 3].any()  # no mask of the other photo
    held[0].continue_()
    status.to_contain_text("of 5 phrases")
    id = grounded.state("state.image.id")
    body = {"caption": grounded.state("state.text")}
    answer = grounded.server.post(f"/api/images/{id}/ground", json=body).json()
    assert (answer["width"], answer["height"]) == (300, 400)
    areas = grounded.state("state.phrases.map((phrase) => phrase.result.mask.area)")
    assert areas == pytest.approx([phrase["area"] for phrase in answer["phrases"]], rel=0.01)


def test_answer_for_another_photo_is_dropped(grounded: Visitor, files: list[Path]) -> None:
    page = grounded.page
    held = hold(page, "**/ground")
    page.click("#find")
    wait_for_request(page, held)
    grounded.upload(files[1])
    with contextlib.suppress(playwright.Error):  # the page may have cancelled it
        held[0].continue_()
    page.wait_for_timeout(300)
    assert not grounded.state("state.phrases.some((phrase) => phrase.result)")
    assert not grounded.canvas()[..., 3].any() and "Found" not in page.inner_text("#status")


def test_refused_photo_leaves_the_last_one(grounded: Visitor, tmp_path: Path) -> None:
    page, before = grounded.page, grounded.canvas()
    (tmp_path / "image.png").write_bytes(b"PK\3\4 not an image")
    page.set_input_files("#file", tmp_path / "image.png")
    playwright.expect(page.locator("#status")).to_contain_text("not an image in a format that can be read")
    grounded.wait_until("document.getElementById('image').naturalWidth === 480")
    playwright.expect(page.locator("#figure")).to_be_visible()
    np.testing.assert_array_equal(grounded.canvas(), before)


def test_visibility_and_only_this_one(grounded: Visitor) -> None:
    page, everything = grounded.page, grounded.canvas()
    switch = page.get_by_role("switch", name="Show green grass")
    playwright.expect(switch).to_be_checked()
    switch.click()
    playwright.expect(switch).not_to_be_checked()
    playwright.expect(switch).to_be_focused()
    page.mouse.move(2, 2)
    hidden = grounded.canvas()
    assert (hidden != everything).any()
    only = page.get_by_role("button", name="Only red ball")
    only.click()
    page.mouse.move(2, 2)
    playwright.expect(page.get_by_role("switch", checked=True)).to_have_count(1)
    np.testing.assert_array_equal(grounded.canvas()[..., 3] > 0, grounded.mask(2))
    only.click()  # again: all
    playwright.expect(page.get_by_role("switch", checked=True)).to_have_count(4)
    page.mouse.move(2, 2)
    np.testing.assert_array_equal(grounded.canvas(), everything)


def test_cutouts_of_what_is_shown(grounded: Visitor) -> None:
    page = grounded.page
    grounded.slide("threshold", 0.4)
    archive = zipfile.ZipFile(io.BytesIO(grounded.download("cutouts.zip")))
    areas = grounded.state("state.phrases.map((phrase) => phrase.result.mask.area)")
    assert len(archive.namelist()) == sum(area > 0 for area in areas) > 1
    largest = int(np.argmax(areas))
    page.locator("#phrases .only").nth(largest).click()
    piece = Image.open(io.BytesIO(grounded.download("cutouts.zip", saved_as="cutout.png")))
    assert (np.asarray(piece)[..., 3] > 0).sum() == pytest.approx(areas[largest], rel=0.01)
    page.locator("#phrases .switch").nth(largest).click()
    page.click("[data-file='cutouts.zip']")
    playwright.expect(page.locator("#status")).to_contain_text("Nothing is shown")


def test_files_of_some_phrases_keep_their_numbers(grounded: Visitor) -> None:
    grounded.slide("threshold", 0.1)
    grounded.page.get_by_role("switch", name="Show two dogs").click()
    archive = zipfile.ZipFile(io.BytesIO(grounded.download("cutouts.zip")))
    names = ["002_green-grass.png", "003_red-ball.png", "004_blue-sky.png"]
    assert archive.namelist() == names
    page = grounded.context.new_page()
    page.set_content(grounded.download("page.html").decode())
    assert page.locator("#list .number").all_inner_texts() == ["2", "3", "4"]
    assert sorted(page.locator(".label").all_inner_texts()) == ["2", "3", "4"]
    assert page.locator("#caption sup").all_inner_texts() == ["2", "3", "4"]
    colours = [
        row.evaluate("(e) => e.style.getPropertyValue('--color')")
        for row in page.locator("#list button").all()
    ]
    assert colours == grounded.state("state.about.palette.slice(1, 4)")


def scale(visitor: Visitor) -> float:
    return visitor.page.evaluate(
        "document.getElementById('masks').getBoundingClientRect().width /"
        " document.getElementById('figure').getBoundingClientRect().width"
    )


def test_zoom_and_pan(grounded: Visitor) -> None:
    page = grounded.page
    corner = "(() => { const { left, top } = masks.getBoundingClientRect(); return [left, top]; })()"
    page.click("#zoom-in")
    assert scale(grounded) == pytest.approx(1.5, rel=0.01)
    page.click("#zoom-reset")
    assert scale(grounded) == pytest.approx(1) and page.locator("#zoom-out").is_disabled()
    page.focus("#figure")
    page.keyboard.press("+")
    page.keyboard.press("+")
    assert scale(grounded) == pytest.approx(2.25, rel=0.01)
    before = page.evaluate(corner)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    after = page.evaluate(corner)
    assert after[0] < before[0] and after[1] < before[1]
    box = page.locator("#figure").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 20, y + 10)
    page.mouse.up()
    moved = page.evaluate(corner)
    assert np.subtract(moved, after) == pytest.approx([20, 10], abs=1)
    assert grounded.state("state.pinned") == []  # the drag was no click
    page.keyboard.press("0")
    assert scale(grounded) == pytest.approx(1)
    assert page.locator("#figure .label").count() > 0


def test_wheel_and_pinch(grounded: Visitor) -> None:
    page = grounded.page
    box = page.locator("#figure").bounding_box()
    x, y = box["x"] + box["width"] / 4, box["y"] + box["height"] / 4
    if grounded.device == "desktop":
        page.mouse.move(x, y)
        page.mouse.wheel(0, -200)
        grounded.wait_until(
            "document.getElementById('masks').getBoundingClientRect().width >"
            " 1.3 * document.getElementById('figure').getBoundingClientRect().width"
        )
        page.mouse.wheel(0, 2000)  # out again; then the page would scroll
    else:
        fingers = page.context.new_cdp_session(page)
        for kind, reach in (("touchStart", 20), ("touchMove", 40), ("touchMove", 60)):
            points = [{"x": x - reach / 2, "y": y, "id": 0}, {"x": x + reach / 2, "y": y, "id": 1}]
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        assert scale(grounded) == pytest.approx(3, rel=0.05)
        page.click("#zoom-reset")
    grounded.wait_until("!document.getElementById('figure').classList.contains('zoomed')")


def test_equal_masks_do_not_hide_each_other(grounded: Visitor) -> None:
    colours = grounded.state("state.about.palette.slice(0, 2)")
    grounded.state("state.phrases.forEach((phrase) => { phrase.result.map = state.phrases[0].result.map; })")
    for number in (2, 3):
        grounded.page.locator("#phrases .switch").nth(number).click()
    grounded.slide("threshold", 0.45)
    grounded.page.mouse.move(2, 2)
    painted = grounded.canvas()
    rgb = [[int(code[i : i + 2], 16) for i in (1, 3, 5)] for code in colours]
    inside = painted[(painted[..., 3] > 0)][:, :3]
    shares = [(np.abs(inside.astype(int) - colour).max(-1) <= 3).mean() for colour in rgb]
    assert min(shares) > 0.25
    assert grounded.page.locator("#figure .label").count() == 2


def test_undo(grounded: Visitor, files: list[Path]) -> None:
    page = grounded.page
    page.mouse.move(2, 2)
    masks = grounded.canvas()
    page.click("[aria-label='Remove green grass']")
    playwright.expect(page.locator("#phrases li")).to_have_count(3)
    page.locator("#samples button").last.click()
    playwright.expect(page.locator("#caption")).not_to_have_value(CAPTION)
    grounded.wait_until(  # the results of the sample: the status may still be that of the photo
        "import('/static/state.js').then(({ state }) => state.image?.sample != null &&"
        " state.grounding?.text === state.text && state.phrases.every(({ result }) => result))"
    )
    grounded.wait_for_results()
    page.get_by_role("button", name="Undo: sample").click()
    playwright.expect(page.locator("#caption")).to_have_value(CAPTION)
    playwright.expect(page.locator("#phrases li")).to_have_count(3)
    grounded.wait_until("document.getElementById('image').naturalWidth === 480")
    page.focus("#figure")
    page.keyboard.press("Control+z")
    playwright.expect(page.locator("#phrases li")).to_have_count(4)
    grounded.wait_until("document.getElementById('masks').width === 480")
    page.mouse.move(2, 2)
    for _ in range(100):  # the masks are painted after the list
        if np.array_equal(grounded.canvas(), masks):
            break
        page.wait_for_timeout(50)
    np.testing.assert_array_equal(grounded.canvas(), masks)
    page.get_by_role("button", name="Undo: another photo").click()
    playwright.expect(page.locator("#empty")).to_be_visible()
    assert page.locator("#undo").is_hidden()


def test_undo_after_a_photo_of_another_shape(visitor: Visitor, tmp_path: Path) -> None:
    for name, size in (("low", (480, 270)), ("high", (480, 360))):
        (tmp_path / name).write_bytes(image_bytes(drawn_image(*size)))
    visitor.upload(tmp_path / "high")
    visitor.write(CAPTION, 4)
    visitor.ground()
    visitor.slide("threshold", 0.45)
    area = visitor.state("state.phrases[0].result.mask.area")
    visitor.slide("threshold", 0.6)
    visitor.upload(tmp_path / "low")
    visitor.wait_until("document.getElementById('masks').height === 270")
    visitor.slide("threshold", 0.45)
    visitor.page.get_by_role("button", name="Undo: another photo").click()
    visitor.wait_until("document.getElementById('masks').height === 360")
    playwright.expect(visitor.page.locator("#phrases .score").first).to_contain_text("%")
    assert visitor.state("state.phrases[0].result.mask.area") == area > 0


def test_a_phrase_that_is_found_later_is_shown(visitor: Visitor, files: list[Path], monkeypatch: Any) -> None:
    page = visitor.page
    presence = {"red ball": 0.2, "two dogs": 0.9}
    set_presence(monkeypatch, presence)
    visitor.upload(files[0])
    visitor.write(CAPTION, 4)
    visitor.ground()
    page.get_by_role("switch", name="Show two dogs").click()  # the user's choice
    ball, dogs = (page.get_by_role("switch", name=f"Show {text}") for text in ("red ball", "two dogs"))
    playwright.expect(ball).not_to_be_checked()
    presence.update({"red ball": 0.9, "two dogs": 0.2})
    for _ in range(2):
        with page.expect_response("**/ground"):
            page.click("#find")
        playwright.expect(ball).to_be_checked()
        playwright.expect(dogs).not_to_be_checked()
        presence["two dogs"] = 0.9


def test_score_and_area_are_explained(grounded: Visitor) -> None:
    score = grounded.page.locator("#phrases .score", has_text="score").first
    titles = score.locator("[title]").evaluate_all("(all) => all.map((part) => part.title)")
    assert "mean response inside the mask" in titles[-2] and "the mask covers" in titles[-1]
    name = grounded.page.get_by_role("button", name="of the image").first.inner_text()
    assert "score" in name
    description = grounded.page.locator("#phrases").get_attribute("aria-describedby")
    assert "mean response" in grounded.page.inner_text(f"#{description}")


def test_absent_phrases_and_warnings(visitor: Visitor, files: list[Path], monkeypatch: Any) -> None:
    page = visitor.page
    set_presence(monkeypatch, {"red ball": 0.2, "two dogs": 0.9})
    visitor.upload(files[0])
    visitor.write(CAPTION, 4)
    visitor.ground()
    playwright.expect(page.locator("#status")).to_contain_text("1 is probably not in the image")
    row = page.locator("#phrases li").nth(2)
    assert row.locator(".score").inner_text() == "probably not in the image"
    playwright.expect(row.get_by_role("switch")).not_to_be_checked()
    assert page.locator("#phrases .absent").count() == 1 and not page.locator("#warnings").is_visible()
    visitor.write(GERMAN, 2)
    visitor.ground()
    playwright.expect(page.locator("#warnings")).to_contain_text("German")
    playwright.expect(page.locator("#status")).to_contain_text("Found 0 of 2 phrases: the caption seems not")
    assert page.locator("#phrases .score").all_inner_texts() == ["not English"] * 2
    page.locator("#phrases .phrase").first.hover()
    assert page.locator("#figure .label").count() == 0  # pointing at a phrase does not show its mask
    page.mouse.move(2, 2)
    assert not visitor.canvas()[..., 3].any()
    visitor.slide("threshold", 0.1)
    page.get_by_role("switch").first.click()
    page.mouse.move(2, 2)
    np.testing.assert_array_equal(visitor.canvas()[..., 3] > 0, visitor.mask(0))  # it is asked for
    assert visitor.mask(0).any()
    visitor.check_accessibility()


def test_objects_are_outlined_and_scores_belong_to_the_models_threshold(
    visitor: Visitor, files: list[Path], monkeypatch: Any
) -> None:
    page = visitor.page
    set_answers(monkeypatch, expected_iou=0.64)
    page.reload()
    page.locator("#samples img").first.wait_for()
    visitor.upload(files[0])
    visitor.write(CAPTION, 4)
    visitor.slide("threshold", 0.0)
    visitor.ground()
    assert "expected to have" in page.inner_text("#score-help")
    note = page.locator("#phrases .score").first
    assert "2 objects" in note.inner_text() and "0.64" not in note.inner_text()  # of another threshold
    outlined = visitor.canvas()[..., 3] == 255
    middle = outlined.shape[1] // 2
    assert (
        outlined[20:-20, middle - 24 : middle + 24].any(1).mean() > 0.5
    )  # along the line between the objects
    visitor.slide("threshold", visitor.state("state.grounding.threshold"))
    scores = page.locator("#phrases .score").all_inner_texts()
    assert all("0.64" in text or "no mask" in text for text in scores)
    page.locator("#outline").uncheck()
    visitor.check_accessibility()


def test_downloads_are_readable(grounded: Visitor, browser: Any, tmp_path: Path) -> None:
    overlay = Image.open(io.BytesIO(grounded.download("overlay.png")))
    assert overlay.size == (480, 320)
    coco = json.loads(grounded.download("coco.json"))
    assert [a["text"] for a in coco["annotations"]] == TEXTS
    shown = grounded.state("state.phrases.map((p) => p.result.mask.area)")
    for annotation, area in zip(coco["annotations"], shown, strict=True):
        assert area == pytest.approx(int(coco_mask.area(annotation["segmentation"])), rel=0.01)
    ids = np.asarray(Image.open(io.BytesIO(grounded.download("panoptic.png"))))[..., 0]
    segments = json.loads(grounded.download("panoptic.json"))["annotations"][0]["segments_info"]
    assert {s["id"]: s["area"] for s in segments} == {i: (ids == i).sum() for i in np.unique(ids) if i}
    (tmp_path / "page.html").write_bytes(grounded.download("page.html"))
    offline = browser.new_context(offline=True, **DEVICES[grounded.device]).new_page()
    offline.goto((tmp_path / "page.html").as_uri())
    assert offline.locator("#list button").count() == 4
    offline.context.close()


def test_link_restores_caption_and_settings(visitor: Visitor, browser: Any, files: list[Path]) -> None:
    page = visitor.page
    visitor.upload(files[0])
    visitor.write("two dogs & a cat # % 😀 +", 2)
    visitor.ground()
    visitor.slide("threshold", 0.37)
    visitor.slide("opacity", 0.8)
    page.uncheck("#outline")
    page.click("[aria-label='Remove cat']")
    page.click("#link")
    fields = parse_qs(urlsplit(page.url).fragment)
    assert fields["caption"] == ["two dogs & a cat # % 😀 +"] and fields["threshold"] == ["0.37"]
    page.reload()  # the image is still in the cache
    playwright.expect(page.locator("#status")).to_contain_text("of 1 phrase")
    assert page.input_value("#caption") == fields["caption"][0]
    assert (page.input_value("#threshold"), page.input_value("#opacity")) == ("0.37", "0.8")
    assert not page.is_checked("#outline") and page.locator("#phrases .text").all_inner_texts() == [
        "two dogs"
    ]
    other = browser.new_context(**DEVICES[visitor.device]).new_page()
    other.goto(page.url)  # another browser gets the image from the server
    playwright.expect(other.locator("#status")).to_contain_text("of 1 phrase")
    assert other.locator("#figure").is_visible()
    other.context.close()
    other = browser.new_context(**DEVICES[visitor.device]).new_page()
    other.goto(page.url.replace(f"image={fields['image'][0]}", f"image={'0' * 32}"))
    playwright.expect(other.locator("#status")).to_contain_text("not on the server any more")
    playwright.expect(other.locator("#phrases .text")).to_have_text(["two dogs"])
    assert other.locator("#empty").is_visible()
    other.context.close()


def test_a_sample_grounds_itself_also_from_a_link(visitor: Visitor, browser: Any) -> None:
    page = visitor.page
    page.locator("#samples button").last.click()
    visitor.wait_for_results()  # no other click is needed
    assert page.input_value("#caption") == visitor.state("state.about.samples.at(-1).caption")
    count = page.locator("#phrases li").count()
    page.wait_for_timeout(300)
    assert "sample=scene" in page.url
    other = browser.new_context(color_scheme="dark", **DEVICES[visitor.device]).new_page()
    other.goto(page.url)
    playwright.expect(other.locator("#status")).to_contain_text(f"of {count} phrases")
    SHOTS.mkdir(parents=True, exist_ok=True)
    other.screenshot(path=SHOTS / f"dark_{visitor.device}.png", full_page=True)
    other.context.close()


def test_drop_and_paste(visitor: Visitor) -> None:
    give = """(kind) => new Promise((done) => {
      const canvas = new OffscreenCanvas(64, 48);
      canvas.getContext("2d").fillRect(5, 5, 20, 20);
      canvas.convertToBlob().then((blob) => {
        const data = new DataTransfer();
        data.items.add(new File([blob], "image.png", { type: "image/png" }));
        document.dispatchEvent(kind === "drop"
          ? new DragEvent("drop", { dataTransfer: data, cancelable: true })
          : new ClipboardEvent("paste", { clipboardData: data, cancelable: true }));
        done();
      });
    })"""
    kinds = ("drop", "paste") if visitor.device == "desktop" else ("paste",)  # nothing is dragged on a phone
    for kind in kinds:
        visitor.page.evaluate(give, kind)
        visitor.page.locator("#figure").wait_for()
        playwright.expect(visitor.page.locator("#status")).to_have_text("")
        assert visitor.state("[state.image.width, state.image.height]") == [64, 48]
    assert visitor.requests.count("POST /api/images") == len(kinds)


def test_layout_of_each_device(visitor: Visitor, files: list[Path]) -> None:
    page, phone = visitor.page, visitor.device == "phone"
    assert page.get_by_role("button", name="Take a photo").is_visible() == phone
    assert page.get_by_text("Ctrl + Enter").is_visible() != phone
    for step in (
        lambda: None,
        lambda: visitor.upload(files[1]),
        lambda: visitor.write(CAPTION, 4),
        visitor.ground,
    ):
        step()
        for selector in ("#caption", "#find"):
            box = page.locator(selector).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= page.viewport_size["height"]
        assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]
    if phone:
        with page.expect_file_chooser() as chooser:
            page.locator("#another .take").tap()
        assert chooser.value.element.get_attribute("capture") == "environment"
        chooser.value.set_files(files[0])
        visitor.wait_until("document.getElementById('image').naturalWidth === 480")
    page.locator("#phrases .phrase").first.hover()
    if phone:
        assert not visitor.canvas()[..., 3].any()  # nothing is dimmed before it is grounded
    visitor.screenshot(f"features_{visitor.device}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(visitor: Visitor, files: list[Path], scheme: str) -> None:
    visitor.page.emulate_media(color_scheme=scheme)
    visitor.check_accessibility()
    visitor.upload(files[0])
    visitor.write(CAPTION, 4)
    visitor.ground()
    visitor.page.locator("#phrases .switch").first.click()
    visitor.page.locator("#phrases .only").last.click()
    visitor.page.focus("#phrases .phrase")
    visitor.check_accessibility()
    visitor.page.check("input[value=rounds]", force=True)
    playwright.expect(visitor.page.locator("#round-note")).to_be_visible()
    visitor.check_accessibility()
    visitor.page.goto(f"{visitor.server.base_url}/docs")
    visitor.page.get_by_text("POST /api/images/{id}/ground").wait_for()
    visitor.check_accessibility()
