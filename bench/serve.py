"""How much the server costs: captions a second through HTTP, against the same work in a plain loop.

python -m bench.serve [--model M] [--photos N] [--captions N] [--clients N]
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

from ppmn.grounding.formats import to_coco
from ppmn.grounding.grounder import load
from ppmn.synthetic.scenes import draw_scene

CAPTIONS = (
    "In this image there is a red car on the road and a green tree under the blue sky.",
    "There are two yellow balls and a chair on the grass, and in the background there are few clouds.",
    "In the picture we can see a blue house, a white cat and some flowers.",
)
Work = tuple[bytes, list[str]]  # a photo and what is asked of it


def work(photos: int, captions: int) -> list[Work]:
    made = []
    for number in range(photos):
        buffer = io.BytesIO()
        Image.fromarray(draw_scene(np.random.default_rng(number)).pixels).save(buffer, "PNG")
        made.append((buffer.getvalue(), [CAPTIONS[n % len(CAPTIONS)] for n in range(captions)]))
    return made


@contextmanager
def serving(model: str, *options: str) -> Iterator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "ppmn.cli", "serve", "--model", model, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split(" at ")[1].split()[0]
    finally:
        process.terminate()
        assert process.wait(20) in (0, -15)


def plain(model: str) -> Callable[[Work], int]:
    """EncodedImage, ground, make the masks; returns how many there are."""
    grounder = load(model)

    def run(one: Work) -> int:
        photo, captions = one
        look = grounder.encode(photo)
        return sum(len(json.dumps(to_coco(look.ground(c)))) > 0 for c in captions)

    return run


def over_http(url: str) -> Callable[[Work], int]:
    def post(path: str, body: bytes, kind: str) -> dict:
        request = urllib.request.Request(f"{url}{path}", body, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def run(one: Work) -> int:
        photo, captions = one
        edge = uuid.uuid4().hex
        head = f'--{edge}\r\nContent-Disposition: form-data; name="photo"; filename="photo"\r\n\r\n'
        body = head.encode() + photo + f"\r\n--{edge}--\r\n".encode()
        id = post("api/looks", body, f"multipart/form-data; boundary={edge}")["id"]
        asked = [json.dumps({"caption": caption}).encode() for caption in captions]
        return sum("phrases" in post(f"api/looks/{id}/ground", a, "application/json") for a in asked)

    return run


def rate(run: Callable[[Work], int], jobs: Sequence[Work], clients: int) -> float:
    """Captions a second, after one job that is not counted."""
    run(jobs[0])
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        count = sum(pool.map(run, jobs[1:]))
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="compact", help="a model's name or folder")
    parser.add_argument("--photos", type=int, default=8)
    parser.add_argument("--captions", type=int, default=6, help="of each photo")
    parser.add_argument("--clients", type=int, default=4)
    args = parser.parse_args()
    jobs = work(args.photos + 1, args.captions)
    loop = rate(plain(args.model), jobs, 1)
    with serving(args.model, "--max-queue", str(args.clients)) as url:
        served = rate(over_http(url), jobs, args.clients)
    print(f"plain loop: {loop:.2f} captions a second ({args.photos} photos, {args.captions} captions each)")
    print(f"server, {args.clients} clients: {served:.2f} captions a second, {served / loop:.2f} of the loop")


if __name__ == "__main__":
    main()
