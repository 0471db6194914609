"""The HTTP API: responses, access checks, limits, the queue."""

import base64
import contextlib
import io
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.errors import Unsatisfiable
from PIL import Image
from pycocotools import mask as coco_mask
from support.serving import (
    CAPTION,
    drawn_image,
    image_bytes,
    metric,
    running,
    set_presence,
    small_model,
    upload,
)

import ppmn
from bench.serve import serving
from ppmn.cli import main
from ppmn.grounding.grounder import EncodedImage, Grounder
from ppmn.grounding.onnx_runtime import OnnxRuntime
from ppmn.grounding.render import color
from ppmn.grounding.sessions import Sessions
from ppmn.phrases.rules import Phrase, find_phrases
from ppmn.serve.image_cache import CachedImage, ImageCache
from ppmn.serve.limits import Limits

schemathesis = pytest.importorskip("schemathesis")
GenerationMode, checks = schemathesis.GenerationMode, schemathesis.checks
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
TEXTS = ["two dogs", "green grass", "red ball", "blue sky"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def grounder(folder: Path) -> Grounder:
    return ppmn.load(folder)


@pytest.fixture(scope="module")
def client(grounder: Grounder) -> Iterator[httpx.Client]:
    with running(grounder) as client:
        yield client


def test_server_equals_library(client: httpx.Client, grounder: Grounder) -> None:
    image = drawn_image()
    info = upload(client, image_bytes(image)).json()
    assert (info["width"], info["height"]) == image.size
    answer = client.post(f"/api/images/{info['id']}/ground", json={"caption": CAPTION}).json()
    wanted = grounder.ground(image, CAPTION)
    assert answer["caption"] == CAPTION and answer["skipped"] == ["image"] and answer["rounds"] is None
    assert [p["text"] for p in answer["phrases"]] == TEXTS
    for found, phrase in zip(answer["phrases"], wanted, strict=True):
        mask = coco_mask.decode(found["rle"]).astype(bool)
        np.testing.assert_array_equal(mask, phrase.mask)
        assert found["span"] == list(phrase.span) and found["area"] == phrase.area
        assert found["score"] == pytest.approx(phrase.score, abs=1e-5)
        np.testing.assert_allclose(response(answer, found["map"]), phrase.map, atol=1 / 500)


def response(answer: dict[str, Any], packed: dict[str, Any]) -> np.ndarray:
    cells = np.frombuffer(base64.b64decode(packed["data"]), np.uint8).reshape(answer["map_size"])
    return packed["low"] + (packed["high"] - packed["low"]) * cells / 255


def test_rounds_on_request(client: httpx.Client) -> None:
    id = upload(client, image_bytes(drawn_image())).json()["id"]
    body = {"caption": CAPTION, "keep_rounds": True, "masks": False}
    answer = client.post(f"/api/images/{id}/ground", json=body).json()
    first, second, last = answer["rounds"]  # H0, H1, H2
    assert [len(r["maps"]) for r in answer["rounds"]] == [4, 4, 4]
    for points in first["pixels"] + second["pixels"]:  # 12 per word piece, some of them equal
        assert 12 <= len(points) <= 36 and all(0 <= x < 320 and 0 <= y < 240 for x, y in points)
    assert last["pixels"] == [] and last["maps"] == [p["map"] for p in answer["phrases"]]
    assert all(p["rle"] is None for p in answer["phrases"])


def test_image_is_encoded_once(client: httpx.Client) -> None:
    content = image_bytes(drawn_image(seed=77))
    before = metric(client, "ppmn_images_encoded_total")
    id = upload(client, content).json()["id"]
    for caption in (CAPTION, "a cat", "[the tree] and a person"):
        assert client.post(f"/api/images/{id}/ground", json={"caption": caption}).status_code == 200
    assert upload(client, content).json()["id"] == id  # the same file again
    assert metric(client, "ppmn_images_encoded_total") == before + 1


def test_phrases_need_no_image(client: httpx.Client) -> None:
    answer = client.post("/api/phrases", json={"caption": CAPTION}).json()
    assert [(p["text"], p["abstract"]) for p in answer["phrases"]] == [
        ("image", True),
        *((text, False) for text in TEXTS),
    ]
    marked = client.post("/api/phrases", json={"caption": "[two] dogs"}).json()
    assert marked["caption"] == "two dogs" and [p["span"] for p in marked["phrases"]] == [[0, 3]]
    assert client.post("/api/phrases", json={"caption": ""}).json()["phrases"] == []


def test_files_are_readable(client: httpx.Client) -> None:
    id = upload(client, image_bytes(drawn_image())).json()["id"]

    def file(name: str) -> httpx.Response:
        body = {"caption": CAPTION, "threshold": 0.4}
        answer = client.post(f"/api/images/{id}/files/{name}", json=body)
        assert answer.status_code == 200
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
        return answer

    assert Image.open(io.BytesIO(file("overlay.png").content)).size == (320, 240)
    rgb = np.asarray(Image.open(io.BytesIO(file("panoptic.png").content)))
    segments = file("panoptic.json").json()["annotations"][0]["segments_info"]
    assert {s["id"] for s in segments} == set(np.unique(rgb[..., 0])) - {0}
    assert [a["text"] for a in file("coco.json").json()["annotations"]] == TEXTS
    assert file("page.html").text.startswith("<!doctype html>")
    assert client.post(f"/api/images/{id}/files/passwd", json={"caption": CAPTION}).status_code == 422


def test_cutouts(client: httpx.Client, grounder: Grounder) -> None:
    image = drawn_image()
    files = f"/api/images/{upload(client, image_bytes(image)).json()['id']}/files"
    body = {"caption": CAPTION, "threshold": 0.4}
    wanted = [p for p in grounder.ground(image, CAPTION, threshold=0.4) if p.box]
    archive = zipfile.ZipFile(io.BytesIO(client.post(f"{files}/cutouts.zip", json=body).content))
    assert len(archive.namelist()) == len(wanted) > 0
    for name, phrase in zip(archive.namelist(), wanted, strict=True):
        assert phrase.text.replace(" ", "-") in name and phrase.box is not None
        piece = Image.open(io.BytesIO(archive.read(name)))
        assert piece.mode == "RGBA" and piece.size == phrase.box[2:]
        assert (np.asarray(piece)[..., 3] > 0).sum() == phrase.area
    one = client.post(f"{files}/cutout.png", json={**body, "spans": [wanted[0].span]}).content
    assert one == archive.read(archive.namelist()[0])
    answer = client.post(f"{files}/cutout.png", json=body)
    assert answer.status_code == 422 and "there are 4" in answer.json()["error"]
    empty = {"caption": "a dog", "threshold": 1}
    assert "is empty" in client.post(f"{files}/cutout.png", json=empty).json()["error"]


def test_numbers_of_phrases_in_files(client: httpx.Client) -> None:
    id = upload(client, image_bytes(drawn_image())).json()["id"]
    body = {"caption": "[sky]", "threshold": 0, "opacity": 1, "outline": False}

    def file(name: str, numbers: list[int]) -> httpx.Response:
        return client.post(f"/api/images/{id}/files/{name}", json={**body, "numbers": numbers})

    painted = Image.open(io.BytesIO(file("overlay.png", [3]).content))
    assert painted.getpixel((0, 0)) == color(2)
    archive = zipfile.ZipFile(io.BytesIO(file("cutouts.zip", [3]).content))
    assert archive.namelist() == ["003_sky.png"]
    refused = file("overlay.png", [1, 2])
    assert (refused.status_code, refused.json()["error"]) == (422, "there are 2 numbers for 1 phrases")


def test_warnings_and_presence(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    id = upload(client, image_bytes(drawn_image())).json()["id"]
    german = {"caption": "Ein [Hund] und eine [Katze] auf der Wiese."}
    for path in (f"/api/images/{id}/ground", "/api/phrases"):
        (warning,) = client.post(path, json=german).json()["warnings"]
        assert "German" in warning
        assert client.post(path, json={"caption": CAPTION}).json()["warnings"] == []
    for keep in (False, True):
        body = {**german, "threshold": 0.1, "keep_absent": keep}
        for phrase in client.post(f"/api/images/{id}/ground", json=body).json()["phrases"]:
            assert phrase["foreign"] and not phrase["absent"] and (phrase["area"] > 0) == keep
            assert keep or (phrase["score"], phrase["count"], phrase["box"]) == (0, 0, None)
    set_presence(monkeypatch, {"red ball": 0.25, "two dogs": 0.9})
    answer = client.post(f"/api/images/{id}/ground", json={"caption": CAPTION}).json()
    assert [p["presence"] for p in answer["phrases"]] == [0.9, None, 0.25, None]
    assert [p["absent"] for p in answer["phrases"]] == [False, False, True, False]
    assert not any(p["foreign"] for p in answer["phrases"])
    ball = answer["phrases"][2]
    assert (ball["area"], ball["score"], ball["count"], ball["box"]) == (0, 0, 0, None)
    kept = client.post(f"/api/images/{id}/ground", json={"caption": CAPTION, "keep_absent": True}).json()
    assert kept["phrases"][2]["absent"] and kept["phrases"][2]["area"] > 0


@pytest.mark.parametrize(
    "caption",
    [
        "<script>alert(1)</script> a dog",
        "a 😀 dog 👩‍👩‍👧 and a cat",
        "كلب [على العشب] הכלב",
        "a red ball and the sky, " * 430,
        "dog\0cat",
    ],
    ids=["script", "emoji", "right to left", "10,000 characters", "nul"],
)
def test_unusual_captions(client: httpx.Client, caption: str) -> None:
    id = upload(client, image_bytes(drawn_image(64, 48))).json()["id"]
    found = client.post("/api/phrases", json={"caption": caption})
    assert found.status_code == 200
    answer = client.post(f"/api/images/{id}/ground", json={"caption": caption, "masks": False})
    assert answer.status_code == 200, answer.text
    for phrase in answer.json()["phrases"]:
        assert answer.json()["caption"][slice(*phrase["span"])] == phrase["text"]


def test_errors_are_sentences(client: httpx.Client) -> None:
    id = upload(client, image_bytes(drawn_image(64, 48))).json()["id"]
    ground = f"/api/images/{id}/ground"
    for body, words in (
        ({"caption": " "}, "the caption is empty"),
        ({"caption": "x" * 20_001}, "20,001 characters; the limit is 20,000"),
        ({"caption": "a dog", "spans": [[0, 1]] * 1001}, "1,001 phrases; the limit is 1,000"),
        ({"caption": "a dog", "spans": [[0, 9]]}, "(0, 9) marks no words"),
        ({"caption": "a dog", "spans": []}, "spans is empty"),
        ({"caption": "a dog", "threshold": 2}, "threshold"),
        ({"caption": "[a dog"}, "not closed"),
        ({"captoin": "a dog"}, "caption"),
    ):
        answer = client.post(ground, json=body)
        assert answer.status_code == 422 and words in answer.json()["error"], answer.text
    surrogate = client.post(ground, content=b'{"caption": "\\ud800 dog"}')
    assert surrogate.status_code == 422 and "error" in surrogate.json()
    assert client.post(f"/api/images/{'0' * 32}/ground", json={"caption": "a dog"}).status_code == 404
    assert client.post("/api/images/..%2f..%2fetc/ground", json={"caption": "a dog"}).status_code in (
        404,
        422,
    )
    assert client.get("/static/..%2f..%2fapp.py").status_code == 404


def exif_rotated() -> bytes:
    image = drawn_image(80, 40)
    exif = image.getexif()
    exif[0x0112] = 6  # rotated by 90 degrees
    return image_bytes(image, "JPEG", exif=exif)


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("image.png", image_bytes(drawn_image(20, 20)))
    return buffer.getvalue()


IMAGES = {
    "1x1": (lambda: image_bytes(drawn_image(1, 1)), (1, 1)),
    "CMYK": (lambda: image_bytes(drawn_image(60, 40).convert("CMYK"), "JPEG"), (60, 40)),
    "16 bit": (lambda: image_bytes(Image.fromarray(np.full((40, 60), 40_000, np.uint16))), (60, 40)),
    "animated": (
        lambda: image_bytes(
            drawn_image(60, 40), "GIF", save_all=True, append_images=[drawn_image(60, 40, 1)]
        ),
        (60, 40),
    ),
    "EXIF-rotated": (exif_rotated, (40, 80)),
    "12,000 x 9,000": (lambda: image_bytes(Image.new("L", (12_000, 9_000), 90), "JPEG"), (12_000, 9_000)),
    "truncated": (lambda: image_bytes(drawn_image())[:900], "damaged or cut short"),
    "a zip": (zipped, "not an image in a format that can be read"),
    "an SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image in a format"),
    "nothing": (lambda: b"", "not an image in a format that can be read"),
    "a bomb": (lambda: image_bytes(Image.new("1", (13_000, 13_000))), "pixels; the limit is 120,000,000"),
}  # fmt: skip


@pytest.mark.parametrize("kind", IMAGES)
def test_unusual_images(client: httpx.Client, kind: str) -> None:
    make, wanted = IMAGES[kind]
    answer = upload(client, make(), "../../image.png")
    if isinstance(wanted, str):
        assert answer.status_code == 422 and wanted in answer.json()["error"]
    else:
        info = answer.json()
        assert (info["width"], info["height"]) == wanted
        shown = client.get(f"/api/images/{info['id']}/preview")
        assert max(Image.open(io.BytesIO(shown.content)).size) == min(1600, max(wanted))
        body = {"caption": "a red ball", "masks": False}
        assert client.post(f"/api/images/{info['id']}/ground", json=body).status_code == 200
    assert client.get("/healthz").json() == {"status": "ok"}


def test_large_bodies_are_refused(grounder: Grounder) -> None:
    with running(grounder, limits=Limits(upload_mb=1)) as client:
        answer = upload(client, bytes(1_200_000))
        assert answer.status_code == 413 and "the limit is 1 MB" in answer.json()["error"]

        def pieces() -> Iterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
            for _ in range(40):
                yield bytes(50_000)

        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = client.post("/api/images", content=pieces(), headers=headers)  # without a stated length
        assert answer.status_code == 413
        answer = client.post("/api/phrases", content=bytes(1_000_001))
        assert answer.status_code == 413
        assert upload(client, image_bytes(drawn_image(20, 20))).status_code == 200


def test_other_origins_and_hosts_are_refused(client: httpx.Client) -> None:
    for host, status in (("rebound.example", 400), ("[::1]:8000", 200), ("localhost", 200)):
        assert client.get("/api/about", headers={"Host": host}).status_code == status
    refused = client.get("/api/about", headers={"Host": "rebound.example:80"})
    assert refused.json()["error"].endswith("not to 'rebound.example:80'")
    assert "content-security-policy" in refused.headers
    for origin in ("http://[", "null", "http://evil.example"):
        answer = client.post("/api/phrases", json={"caption": "a dog"}, headers={"Origin": origin})
        assert answer.status_code == 403
    own = str(client.base_url).rstrip("/")
    answer = client.post("/api/phrases", json={"caption": "a dog"}, headers={"Origin": own})
    assert answer.status_code == 200
    assert not [h for h in answer.headers if h.startswith("access-control")]
    page = client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"


def test_token_is_required(grounder: Grounder) -> None:
    with running(grounder, token="word-1") as client:
        assert client.get("/healthz").status_code == client.get("/").status_code == 200
        for wrong in ({}, {"Authorization": "Bearer word"}, {"Authorization": "Basic d29yZA=="}):
            for path in ("/api/about", "/metrics"):
                assert client.get(path, headers=wrong).status_code == 401
        right = {"Authorization": "Bearer word-1"}
        assert client.get("/api/about", headers=right).status_code == 200


def slow_down(grounder: Grounder, monkeypatch: pytest.MonkeyPatch, seconds: float) -> threading.Event:
    """Delay every encoding; the event is set when one has started."""
    started, encode = threading.Event(), grounder.encode

    def encode_slowly(image: Image.Image) -> EncodedImage:
        started.set()
        time.sleep(seconds)
        return encode(image)

    monkeypatch.setattr(grounder, "encode", encode_slowly)
    return started


def test_full_queue_returns_retry_after(grounder: Grounder, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(grounder, monkeypatch, 0.3)
    with running(grounder, limits=Limits(queue=2)) as client, ThreadPoolExecutor(8) as pool:
        contents = [image_bytes(drawn_image(30, 20, seed)) for seed in range(8)]
        answers = list(pool.map(lambda content: upload(client, content), contents))
        refused = [a for a in answers if a.status_code == 503]
        assert {a.status_code for a in answers} == {200, 503} and len(refused) >= 4
        assert all(1 <= int(a.headers["retry-after"]) <= 30 for a in refused)
        assert metric(client, "ppmn_requests_refused_total") == len(refused)
        assert metric(client, "ppmn_images_encoded_total") == 8 - len(refused)


def test_jobs_of_gone_clients_are_dropped(grounder: Grounder, monkeypatch: pytest.MonkeyPatch) -> None:
    started = slow_down(grounder, monkeypatch, 2)
    with running(grounder) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(upload, client, image_bytes(drawn_image(30, 20, 1)))
        assert started.wait(5)
        with pytest.raises(httpx.ReadTimeout):
            impatient = httpx.Client(base_url=client.base_url, timeout=0.4)
            upload(impatient, image_bytes(drawn_image(30, 20, 2)))
        impatient.close()
        assert first.result().status_code == 200
        assert metric(client, "ppmn_requests_dropped_total") == 1 and metric(client, "ppmn_queue_depth") == 0
        assert metric(client, "ppmn_images_encoded_total") == 1


@contextlib.contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """What happens here ends at most a second after `seconds`, a request's time limit."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + 1


def test_slow_requests_time_out(grounder: Grounder, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(grounder, monkeypatch, 4)
    with running(grounder, limits=Limits(seconds=1)) as client, ends_within(1):
        answer = upload(client, image_bytes(drawn_image(30, 20)))
        assert answer.status_code == 504 and "longer than 1 s" in answer.json()["error"]


def test_cache_limits(grounder: Grounder) -> None:
    images = [CachedImage(str(n), grounder.encode(drawn_image(30, 20, n))) for n in range(4)]
    few = ImageCache(max_images=2, max_bytes=10**9)
    small = ImageCache(max_images=9, max_bytes=2 * images[0].size + 99)
    for cache in (few, small):
        cache.put(images[0])
        cache.put(images[1])
        assert cache.get("0") is images[0]  # now 1 is the least recently used
        cache.put(images[2])
        assert cache.get("1") is None and cache.get("0") is images[0] and len(cache) == 2
        assert cache.bytes == images[0].size + images[2].size
    with pytest.raises(ppmn.errors.InputError, match="the limit is 0 MB"):
        ImageCache(max_images=9, max_bytes=100).put(images[3])


def test_about_and_samples(client: httpx.Client) -> None:
    about = client.get("/api/about").json()
    assert about["threshold"] == 0.5 and about["limits"]["upload_mb"] == 40
    assert len(about["samples"]) >= 2
    for number, sample in enumerate(about["samples"]):
        answer = client.get(f"/api/samples/{number}")
        assert min(Image.open(io.BytesIO(answer.content)).size) >= 200 and sample["caption"]
    assert client.get(f"/api/samples/{len(about['samples'])}").status_code == 404
    text = client.get("/metrics").text
    assert 'ppmn_request_seconds_count{route="/api/about",status="200"}' in text


def test_api_conforms_to_its_schema(client: httpx.Client) -> None:
    schema = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
    id = upload(client, image_bytes(drawn_image(30, 20))).json()["id"]
    statuses: set[int] = set()

    def send(case: Any) -> None:
        if "id" in case.path_parameters and case.meta.generation.mode.is_positive:
            case.path_parameters["id"] = id
        answer = case.call()
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    for operation in schema.get_all_operations():
        for mode in GenerationMode:
            attempt = given(operation.ok().as_strategy(generation_mode=mode))(send)
            with contextlib.suppress(Unsatisfiable):  # a request without parameters has no invalid form
                settings(max_examples=12, deadline=None, derandomize=True, database=None)(attempt)()
    assert {200, 422} <= statuses and not {s for s in statuses if s >= 500}


def test_serve_command_prints_its_address(folder: Path) -> None:
    with serving(str(folder), "--token", "t") as url:
        assert url.startswith("http://127.0.0.1:") and url.endswith("/?token=t")
        headers = {"Authorization": "Bearer t"}
        about = httpx.get(url.replace("?token=t", "api/about"), headers=headers, timeout=30).json()
        assert about["model"] == "model"


def test_bad_options_are_errors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", str(folder), "--max-queue", "0"]) == 2
    assert "--max-queue is 0" in capsys.readouterr().err
    assert main(["serve", "--model", str(folder), "--host", "192.0.2.1"]) == 2
    assert "cannot listen on 192.0.2.1:8000" in capsys.readouterr().err
    assert main(["serve", "--model", str(folder), "--token", "zwölf"]) == 2
    assert "the token" in capsys.readouterr().err
    assert main(["serve", "--model", "no such model", "--port", "0"]) == 2


def test_caption_is_parsed_once_per_request(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def record(caption: str, **options: Any) -> list[Phrase]:
        parsed.append(caption)
        return find_phrases(caption, **options)

    monkeypatch.setattr("ppmn.phrases.caption.find_phrases", record)
    id = upload(client, image_bytes(drawn_image(seed=4))).json()["id"]
    client.post(f"/api/images/{id}/ground", json={"caption": CAPTION}).raise_for_status()
    assert parsed == [CAPTION]


def test_running_work_is_stopped_at_the_time_limit(
    grounder: Grounder, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    encoder, layer = grounder.model.image_encoder, torch.nn.Identity()
    encode = encoder.forward

    def encode_in_steps(images: Any) -> Any:
        for step in range(200):
            layer(torch.zeros(1))
            steps.append(step)
            time.sleep(0.05)
        return encode(images)

    with running(grounder, limits=Limits(seconds=1)) as client:
        monkeypatch.setattr(encoder, "forward", encode_in_steps)
        with ends_within(1):
            assert upload(client, image_bytes(drawn_image(30, 20))).status_code == 504
            count = len(steps)
        monkeypatch.setattr(encoder, "forward", encode)
        until = time.monotonic() + 60
        while upload(client, image_bytes(drawn_image(30, 20, 1))).status_code != 200:
            assert time.monotonic() < until
        assert 0 < count <= len(steps) <= count + 1  # the work ends with the request
        assert metric(client, "ppmn_images_encoded_total") == 1


def test_time_limit_counts_the_arrival_of_the_request(
    grounder: Grounder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(grounder, monkeypatch, 4)
    content = image_bytes(drawn_image(30, 20))

    def pieces() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
        time.sleep(1.2)
        yield content + b"\r\n--b--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    with running(grounder, limits=Limits(seconds=2)) as client, ends_within(2):
        assert client.post("/api/images", content=pieces(), headers=headers).status_code in (408, 504)


def endless_graph() -> bytes:
    """A graph that takes an image and computes for hours, in short operations."""
    from onnx import TensorProto, checker, helper

    number, truth = TensorProto.FLOAT, TensorProto.BOOL
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"]), helper.make_node("Identity", ["go"], ["on"])],
        "step",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", truth, []),
            helper.make_tensor_value_info("x", number, [64, 64]),
        ],
        [
            helper.make_tensor_value_info("on", truth, []),
            helper.make_tensor_value_info("y", number, [64, 64]),
        ],
    )
    start = helper.make_tensor("start", number, [64, 64], np.zeros((64, 64), np.float32))
    graph = helper.make_graph(
        [helper.make_node("Loop", ["steps", "", "start"], ["pixels"], body=body)],
        "endless",
        [helper.make_tensor_value_info("image", number, [3, "height", "width"])],
        [helper.make_tensor_value_info("pixels", number, [64, 64])],
        [start, helper.make_tensor("steps", TensorProto.INT64, [], [10**10])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def test_a_graph_is_stopped_at_the_time_limit(folder: Path, tmp_path: Path) -> None:
    ort, model = pytest.importorskip("onnxruntime"), shutil.copytree(folder, tmp_path / "model")
    pytest.importorskip("onnxscript")
    assert main(["export", "--model", str(model)]) == 0
    grounder = ppmn.load(model, runtime="onnx", threads=1)
    assert isinstance(grounder.runtime, OnnxRuntime)
    sessions = dict(grounder.runtime._sessions.by_name)
    endless = ort.InferenceSession(endless_graph(), providers=["CPUExecutionProvider"])
    wanted = grounder.ground(drawn_image(), CAPTION)
    with running(grounder, limits=Limits(seconds=1)) as client:
        grounder.runtime._sessions = Sessions(sessions | {grounder.runtime._image: endless})
        with ends_within(1):
            answer = upload(client, image_bytes(drawn_image()))
            assert answer.status_code == 504 and "longer than 1 s" in answer.json()["error"]
        grounder.runtime._sessions = Sessions(sessions)
        with ends_within(1):  # the worker is free again
            while (info := upload(client, image_bytes(drawn_image()))).status_code != 200:
                assert info.status_code == 504
        found = client.post(f"/api/images/{info.json()['id']}/ground", json={"caption": CAPTION})
        assert [p["area"] for p in found.json()["phrases"]] == [phrase.area for phrase in wanted]
        assert metric(client, "ppmn_images_encoded_total") == 1
