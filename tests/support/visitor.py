"""A user of the page, in a real browser."""

import base64
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

playwright = pytest.importorskip("playwright.sync_api")
playwright.expect.set_options(timeout=60_000)
_TO_BASE64 = "btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(''))"
SHOTS = Path(os.environ.get("PPMN_SCREENSHOTS", Path(__file__).resolve().parents[2] / "out" / "screenshots"))


def accessibility_problems(page: Any) -> list[str]:
    """What axe-core finds against WCAG 2.2 on levels A and AA."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    levels = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"]
    found = axe.run(page, options={"runOnly": {"type": "tag", "values": levels}}).response["violations"]
    return [f"{v['id']}: {node['html']} {node['failureSummary']}" for v in found for node in v["nodes"]]


class Visitor:
    """A user of the page; script errors, dialogs and requests to other servers fail the test."""

    def __init__(self, browser: Any, server: httpx.Client, **options: Any) -> None:
        self.server, self.problems, self.requests, self.device = server, [], [], "desktop"
        options = {"viewport": {"width": 1280, "height": 860}, "accept_downloads": True, **options}
        self.context = browser.new_context(**options)
        self.page = page = self.context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._record)
        page.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        page.goto(str(server.base_url))
        page.locator("#samples img").first.wait_for()

    def _record(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("blob", "data") and f"{parts.scheme}://{parts.netloc}" not in str(
            self.server.base_url
        ):
            self.problems.append(f"requested {request.url}")
        if parts.path.startswith("/api/"):
            self.requests.append(f"{request.method} {parts.path}")

    def upload(self, file: Path) -> None:
        self.page.set_input_files("#file", file)
        self.page.locator("#figure").wait_for()
        self.wait_until("import('/static/state.js').then(({ state }) => state.image.ready).then(() => true)")

    def wait_until(self, expression: str) -> None:
        """Wait for a JavaScript expression to be true; Playwright's own fails under the page's policy."""
        for _ in range(1200):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"not true within a minute: {expression}")

    def write(self, caption: str, phrases: int | None = None) -> None:
        self.page.fill("#caption", caption)
        if phrases is not None:
            playwright.expect(self.page.locator("#phrases li")).to_have_count(phrases)

    def ground(self) -> None:
        self.page.click("#find")
        self.wait_for_results()

    def wait_for_results(self) -> None:
        playwright.expect(self.page.locator("#status")).to_contain_text("Found")

    def state(self, expression: str) -> Any:
        return self.page.evaluate(
            f"async () => {{ const {{ state }} = await import('/static/state.js'); return {expression}; }}"
        )

    def canvas(self) -> np.ndarray:
        """The canvas over the image, (H, W, 4)."""
        height, width, data = self.page.evaluate(
            "() => { const c = document.getElementById('masks');"
            " const bytes = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            f" return [c.height, c.width, {_TO_BASE64}]; }}"
        )
        return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)

    def mask(self, number: int) -> np.ndarray:
        """The mask of a phrase as the browser computes it, (H, W)."""
        box, data = self.state(
            f"(({{ pixels: bytes, ...box }}) => [box, {_TO_BASE64}])(state.phrases[{number}].result.mask)"
        )
        mask = np.zeros(self.state("[masks.height, masks.width]"), bool)
        part = np.frombuffer(base64.b64decode(data), np.uint8).reshape(box["height"], box["width"])
        mask[box["y"] : box["y"] + box["height"], box["x"] : box["x"] + box["width"]] = part > 0
        return mask

    def highlighted(self) -> list[str]:
        return self.page.locator("#phrases .phrase.on .text").all_inner_texts()

    def slide(self, id: str, value: float) -> None:
        self.page.locator(f"#{id}").evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", value
        )

    def screenshot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def download(self, name: str, saved_as: str | None = None) -> bytes:
        with self.page.expect_download() as waiting:
            self.page.click(f"[data-file='{name}']")
        assert waiting.value.suggested_filename == (saved_as or name)
        return Path(waiting.value.path()).read_bytes()

    def check_accessibility(self) -> None:
        assert accessibility_problems(self.page) == []

    def close(self) -> None:
        self.context.close()
        assert self.problems == []
