"""The overhead of the server: captions per second over HTTP, relative to a plain loop.

python -m bench.serve [--model M] [--images N] [--captions N] [--clients N]
"""

import argparse
import io
import json
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from PIL import Image

from ppmn.grounding.coco import to_coco
from ppmn.grounding.grounder import load
from ppmn.synthetic.scenes import draw_scene

CAPTIONS = (
    "In this image there is a red car on the road and a green tree under the blue sky.",
    "There are two yellow balls and a chair on the grass, and in the background there are few clouds.",
    "In the picture we can see a blue house, a white cat and some flowers.",
)
Work = tuple[bytes, list[str]]  # an image file and its captions


def make_work(images: int, captions: int) -> list[Work]:
    """Drawn scenes with as many captions each."""
    made = []
    for number in range(images):
        buffer = io.BytesIO()
        Image.fromarray(draw_scene(np.random.default_rng(number)).pixels).save(buffer, "PNG")
        made.append((buffer.getvalue(), [CAPTIONS[n % len(CAPTIONS)] for n in range(captions)]))
    return made


@contextmanager
def serving(model: str, *options: str) -> Iterator[str]:
    """The address of a server in its own process."""
    command = [sys.executable, "-m", "ppmn.cli", "serve", "--model", model, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split(" at ")[1].split()[0]
    finally:
        process.terminate()
        assert process.wait(20) in (0, -15)


def plain(model: str) -> Callable[[Work], int]:
    """Encode, ground and make masks in this process; returns the number of captions."""
    grounder = load(model)

    def run(one: Work) -> int:
        image, captions = one
        encoded = grounder.encode(image)
        return sum(len(json.dumps(to_coco(encoded.ground(c)))) > 0 for c in captions)

    return run


def over_http(url: str) -> Callable[[Work], int]:
    """The same work, sent to a server."""

    def post(path: str, body: bytes, kind: str) -> dict:
        request = urllib.request.Request(f"{url}{path}", body, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def run(one: Work) -> int:
        image, captions = one
        boundary = uuid.uuid4().hex
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n\r\n'
        body = head.encode() + image + f"\r\n--{boundary}--\r\n".encode()
        id = post("api/images", body, f"multipart/form-data; boundary={boundary}")["id"]
        bodies = [json.dumps({"caption": caption}).encode() for caption in captions]
        return sum("phrases" in post(f"api/images/{id}/ground", b, "application/json") for b in bodies)

    return run


def rate(run: Callable[[Work], int], jobs: Sequence[Work], clients: int) -> float:
    """Captions per second, after one job as a warm-up."""
    run(jobs[0])
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        count = sum(pool.map(run, jobs[1:]))
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="compact", help="name or folder of a model (default: compact)")
    parser.add_argument("--images", type=int, default=8, help="number of images (default: 8)")
    parser.add_argument("--captions", type=int, default=6, help="captions per image (default: 6)")
    parser.add_argument("--clients", type=int, default=4, help="clients at the same time (default: 4)")
    args = parser.parse_args()
    jobs = make_work(args.images + 1, args.captions)
    loop = rate(plain(args.model), jobs, 1)
    with serving(args.model, "--max-queue", str(args.clients)) as url:
        served = rate(over_http(url), jobs, args.clients)
    print(f"plain loop: {loop:.2f} captions per second ({args.images} images, {args.captions} captions each)")
    print(
        f"server, {args.clients} clients: {served:.2f} captions per second, {served / loop:.2f} of the loop"
    )


if __name__ == "__main__":
    main()
