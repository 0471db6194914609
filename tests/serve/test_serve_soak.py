"""Many clients at once for minutes: the masks of a single client, every request answered, constant memory."""

import os
import random
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from pycocotools import mask as coco_mask
from support.serving import drawn_image, image_bytes, metric, small_model, upload

from bench.serve import serving

CLIENTS, SECONDS = 32, float(os.environ.get("PPMN_SOAK_SECONDS", "120"))
CAPTIONS = (
    "two dogs on the green grass under the blue sky",
    "a red ball and a cat",
    "In this image there is a person on the left and a tree on the right, and few dogs in the grass.",
)
WORK = [(image_bytes(drawn_image(320 + 20 * n, 240, seed=n)), c) for n in range(12) for c in CAPTIONS]
Masks = list[np.ndarray]


class Client:
    """A client that retries after a 503; `refused` counts how often."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)
        self.refused = self.answered = 0

    def ground(self, content: bytes, caption: str) -> Masks:
        while True:  # until the image is still in the cache when the caption is grounded
            id = self._retrying(lambda: upload(self.http, content)).json()["id"]
            found = self._retrying(
                lambda id=id: self.http.post(f"/api/images/{id}/ground", json={"caption": caption})
            )
            if found.status_code == 200:
                self.answered += 1
                return [coco_mask.decode(p["rle"]).astype(bool) for p in found.json()["phrases"]]
            assert found.status_code == 404, found.text

    def _retrying(self, send) -> httpx.Response:  # type: ignore[no-untyped-def]
        until = time.monotonic() + 120
        while (answer := send()).status_code == 503:
            assert time.monotonic() < until, "a request was refused for two minutes"
            self.refused += 1
            time.sleep(int(answer.headers["retry-after"]) * random.uniform(0.5, 1.5))
        return answer


def iou(one: np.ndarray, other: np.ndarray) -> float:
    either = (one | other).sum()
    return float((one & other).sum() / either) if either else 1.0


@pytest.mark.soak
def test_many_clients(tmp_path: Path) -> None:
    with serving(str(small_model(tmp_path)), "--max-queue", "16", "--max-images", "8") as url:
        single = Client(url)
        wanted = [single.ground(*work) for work in WORK]
        clients, wrong, end = [Client(url) for _ in range(CLIENTS)], [], time.monotonic() + SECONDS

        def run_client(client: Client, seed: int) -> None:
            order = random.Random(seed)
            try:
                while time.monotonic() < end:
                    n = order.randrange(len(WORK))
                    found = client.ground(*WORK[n])
                    lowest = min(iou(a, b) for a, b in zip(found, wanted[n], strict=True))
                    if lowest < 0.999:
                        wrong.append(f"work {n}: IoU {lowest:.4f}")
            except Exception as error:
                wrong.append(repr(error))

        threads = [threading.Thread(target=run_client, args=(c, n)) for n, c in enumerate(clients)]
        for thread in threads:
            thread.start()
        memory = []
        while any(t.is_alive() for t in threads):
            memory.append(
                (SECONDS - end + time.monotonic(), metric(single.http, "process_resident_memory_bytes"))
            )
            time.sleep(1)
        assert wrong == []
        answered, refused = (sum(getattr(c, k) for c in clients) for k in ("answered", "refused"))
        middle = np.median([m for t, m in memory if SECONDS / 4 <= t < SECONDS / 2])
        late = np.median([m for t, m in memory if t >= 3 * SECONDS / 4])
        print(
            f"{answered} answers, {refused} times 503; {middle / 1e6:.0f} MB, at the end {late / 1e6:.0f} MB"
        )
        assert refused > 0 and answered > CLIENTS
        assert late < 1.05 * middle
