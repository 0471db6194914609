"""The server as its clients meet it: answers, guards, limits, the queue."""

import base64
import contextlib
import io
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
from hypothesis import given, settings
from hypothesis.errors import Unsatisfiable
from PIL import Image
from pycocotools import mask as coco_mask
from support.serving import CAPTION, encoded, look, metric, photo, running, small_model

import ppmn
from bench.serve import serving
from ppmn.cli import main
from ppmn.grounding.grounder import Grounder
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


def test_a_photo_and_a_caption_give_what_the_library_gives(client: httpx.Client, grounder: Grounder) -> None:
    image = photo()
    seen = look(client, encoded(image)).json()
    assert (seen["width"], seen["height"]) == image.size
    answer = client.post(f"/api/looks/{seen['id']}/ground", json={"caption": CAPTION}).json()
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
    cells = np.frombuffer(base64.b64decode(packed["data"]), np.uint8).reshape(answer["grid"])
    return packed["low"] + (packed["high"] - packed["low"]) * cells / 255


def test_rounds_come_where_they_are_asked_for(client: httpx.Client) -> None:
    id = look(client, encoded(photo())).json()["id"]
    body = {"caption": CAPTION, "rounds": True, "masks": False}
    answer = client.post(f"/api/looks/{id}/ground", json=body).json()
    first, second, last = answer["rounds"]  # H0, H1, H2
    assert [len(r["maps"]) for r in answer["rounds"]] == [4, 4, 4]
    for points in first["pixels"] + second["pixels"]:  # 12 a word piece, some of them the same
        assert 12 <= len(points) <= 36 and all(0 <= x < 320 and 0 <= y < 240 for x, y in points)
    assert last["pixels"] == [] and last["maps"] == [p["map"] for p in answer["phrases"]]
    assert all(p["rle"] is None for p in answer["phrases"])


def test_a_second_caption_does_not_look_at_the_photo_again(client: httpx.Client) -> None:
    content = encoded(photo(seed=77))
    before = metric(client, "ppmn_looks_encoded_total")
    id = look(client, content).json()["id"]
    for caption in (CAPTION, "a cat", "[the tree] and a person"):
        assert client.post(f"/api/looks/{id}/ground", json={"caption": caption}).status_code == 200
    assert look(client, content).json()["id"] == id  # nor does the same file once more
    assert metric(client, "ppmn_looks_encoded_total") == before + 1


def test_phrases_are_found_without_a_photo(client: httpx.Client) -> None:
    answer = client.post("/api/phrases", json={"caption": CAPTION}).json()
    assert [(p["text"], p["empty"]) for p in answer["phrases"]] == [
        ("image", True),
        *((text, False) for text in TEXTS),
    ]
    marked = client.post("/api/phrases", json={"caption": "[two] dogs"}).json()
    assert marked["caption"] == "two dogs" and [p["span"] for p in marked["phrases"]] == [[0, 3]]
    assert client.post("/api/phrases", json={"caption": ""}).json()["phrases"] == []


def test_every_file_can_be_read_back(client: httpx.Client) -> None:
    id = look(client, encoded(photo())).json()["id"]

    def file(name: str) -> httpx.Response:
        body = {"caption": CAPTION, "threshold": 0.4}
        answer = client.post(f"/api/looks/{id}/files/{name}", json=body)
        assert answer.status_code == 200
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
        return answer

    assert Image.open(io.BytesIO(file("overlay.png").content)).size == (320, 240)
    rgb = np.asarray(Image.open(io.BytesIO(file("panoptic.png").content)))
    segments = file("panoptic.json").json()["annotations"][0]["segments_info"]
    assert {s["id"] for s in segments} == set(np.unique(rgb[..., 0])) - {0}
    assert [a["text"] for a in file("coco.json").json()["annotations"]] == TEXTS
    assert file("page.html").text.startswith("<!doctype html>")
    assert client.post(f"/api/looks/{id}/files/passwd", json={"caption": CAPTION}).status_code == 422


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
def test_captions_of_all_kinds(client: httpx.Client, caption: str) -> None:
    id = look(client, encoded(photo(64, 48))).json()["id"]
    found = client.post("/api/phrases", json={"caption": caption})
    assert found.status_code == 200
    answer = client.post(f"/api/looks/{id}/ground", json={"caption": caption, "masks": False})
    assert answer.status_code == 200, answer.text
    for phrase in answer.json()["phrases"]:
        assert answer.json()["caption"][slice(*phrase["span"])] == phrase["text"]


def test_what_is_wrong_is_said_in_a_sentence(client: httpx.Client) -> None:
    id = look(client, encoded(photo(64, 48))).json()["id"]
    ground = f"/api/looks/{id}/ground"
    for body, words in (
        ({"caption": " "}, "the caption is empty"),
        ({"caption": "x" * 20_001}, "20,001 characters; the most is 20,000"),
        ({"caption": "a dog", "spans": [[0, 1]] * 1001}, "1,001 phrases; the most is 1,000"),
        ({"caption": "a dog", "spans": [[0, 9]]}, "(0, 9) marks no words"),
        ({"caption": "a dog", "spans": []}, "no phrase is marked"),
        ({"caption": "a dog", "threshold": 2}, "threshold"),
        ({"caption": "[a dog"}, "not closed"),
        ({"captoin": "a dog"}, "caption"),
    ):
        answer = client.post(ground, json=body)
        assert answer.status_code == 422 and words in answer.json()["error"], answer.text
    surrogate = client.post(ground, content=b'{"caption": "\\ud800 dog"}')
    assert surrogate.status_code == 422 and "error" in surrogate.json()
    assert client.post(f"/api/looks/{'0' * 32}/ground", json={"caption": "a dog"}).status_code == 404
    assert client.post("/api/looks/..%2f..%2fetc/ground", json={"caption": "a dog"}).status_code in (404, 422)
    assert client.get("/static/..%2f..%2fapp.py").status_code == 404


def exif_rotated() -> bytes:
    image = photo(80, 40)
    exif = image.getexif()
    exif[0x0112] = 6  # a quarter turn
    return encoded(image, "JPEG", exif=exif)


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("photo.png", encoded(photo(20, 20)))
    return buffer.getvalue()


PHOTOS = {
    "1x1": (lambda: encoded(photo(1, 1)), (1, 1)),
    "CMYK": (lambda: encoded(photo(60, 40).convert("CMYK"), "JPEG"), (60, 40)),
    "16 bit": (lambda: encoded(Image.fromarray(np.full((40, 60), 40_000, np.uint16))), (60, 40)),
    "animated": (
        lambda: encoded(photo(60, 40), "GIF", save_all=True, append_images=[photo(60, 40, 1)]),
        (60, 40),
    ),
    "EXIF-rotated": (exif_rotated, (40, 80)),
    "12,000 x 9,000": (lambda: encoded(Image.new("L", (12_000, 9_000), 90), "JPEG"), (12_000, 9_000)),
    "truncated": (lambda: encoded(photo())[:900], "damaged or cut short"),
    "a zip": (zipped, "not a photo in a format that is read"),
    "an SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a photo in a format"),
    "nothing": (lambda: b"", "not a photo in a format that is read"),
    "a bomb": (lambda: encoded(Image.new("1", (13_000, 13_000))), "pixels; the most is 120,000,000"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PHOTOS)
def test_photos_of_all_kinds(client: httpx.Client, kind: str) -> None:
    make, wanted = PHOTOS[kind]
    answer = look(client, make(), "../../photo.png")
    if isinstance(wanted, str):
        assert answer.status_code == 422 and wanted in answer.json()["error"]
    else:
        seen = answer.json()
        assert (seen["width"], seen["height"]) == wanted
        shown = client.get(f"/api/looks/{seen['id']}/photo")
        assert max(Image.open(io.BytesIO(shown.content)).size) == min(1600, max(wanted))
        body = {"caption": "a red ball", "masks": False}
        assert client.post(f"/api/looks/{seen['id']}/ground", json=body).status_code == 200
    assert client.get("/healthz").json() == {"status": "ok"}


def test_too_many_bytes_are_refused_before_and_while_they_come(grounder: Grounder) -> None:
    with running(grounder, limits=Limits(upload=1)) as client:
        answer = look(client, bytes(1_200_000))
        assert answer.status_code == 413 and "the most is 1 MB" in answer.json()["error"]

        def pieces() -> Iterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n\r\n'
            for _ in range(40):
                yield bytes(50_000)

        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = client.post("/api/looks", content=pieces(), headers=headers)  # of no stated length
        assert answer.status_code == 413
        answer = client.post("/api/phrases", content=bytes(1_000_001))
        assert answer.status_code == 413
        assert look(client, encoded(photo(20, 20))).status_code == 200


def test_other_sites_and_names_are_refused(client: httpx.Client) -> None:
    assert client.get("/api/about", headers={"Host": "rebound.example"}).status_code == 403
    answer = client.post("/api/phrases", json={"caption": "a dog"}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    own = str(client.base_url).rstrip("/")
    answer = client.post("/api/phrases", json={"caption": "a dog"}, headers={"Origin": own})
    assert answer.status_code == 200
    assert not [h for h in answer.headers if h.startswith("access-control")]
    page = client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"


def test_a_token_is_asked_for(grounder: Grounder) -> None:
    with running(grounder, token="word-1") as client:
        assert client.get("/healthz").status_code == client.get("/").status_code == 200
        for wrong in ({}, {"Authorization": "Bearer word"}, {"Authorization": "Basic d29yZA=="}):
            for path in ("/api/about", "/metrics"):
                assert client.get(path, headers=wrong).status_code == 401
        right = {"Authorization": "Bearer word-1"}
        assert client.get("/api/about", headers=right).status_code == 200


def slow(grounder: Grounder, monkeypatch: pytest.MonkeyPatch, seconds: float) -> threading.Event:
    """Make every look take its time; the event is set when one has begun."""
    begun, fast = threading.Event(), grounder.look

    def look(photo: Image.Image) -> Any:
        begun.set()
        time.sleep(seconds)
        return fast(photo)

    monkeypatch.setattr(grounder, "look", look)
    return begun


def test_a_full_queue_says_when_to_come_again(grounder: Grounder, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(grounder, monkeypatch, 0.3)
    with running(grounder, limits=Limits(queue=2)) as client, ThreadPoolExecutor(8) as pool:
        contents = [encoded(photo(30, 20, seed)) for seed in range(8)]
        answers = list(pool.map(lambda content: look(client, content), contents))
        refused = [a for a in answers if a.status_code == 503]
        assert {a.status_code for a in answers} == {200, 503} and len(refused) >= 4
        assert all(1 <= int(a.headers["retry-after"]) <= 30 for a in refused)
        assert metric(client, "ppmn_refused_total") == len(refused)
        assert metric(client, "ppmn_looks_encoded_total") == 8 - len(refused)


def test_work_of_a_client_that_has_gone_is_dropped(
    grounder: Grounder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = slow(grounder, monkeypatch, 2)
    with running(grounder) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(look, client, encoded(photo(30, 20, 1)))
        assert begun.wait(5)
        with pytest.raises(httpx.ReadTimeout):
            impatient = httpx.Client(base_url=client.base_url, timeout=0.4)
            look(impatient, encoded(photo(30, 20, 2)))
        impatient.close()
        assert first.result().status_code == 200
        assert metric(client, "ppmn_dropped_total") == 1 and metric(client, "ppmn_queue_depth") == 0
        assert metric(client, "ppmn_looks_encoded_total") == 1


def test_a_request_has_only_so_much_time(grounder: Grounder, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(grounder, monkeypatch, 2)
    with running(grounder, limits=Limits(seconds=1)) as client:
        answer = look(client, encoded(photo(30, 20)))
        assert answer.status_code == 504 and "more than 1 s" in answer.json()["error"]


def test_the_cache_is_bounded(grounder: Grounder) -> None:
    looks = [CachedImage(str(n), grounder.encode(photo(30, 20, n))) for n in range(4)]
    few = ImageCache(most=2, room=10**9)
    small = ImageCache(most=9, room=2 * looks[0].size + 99)
    for cache in (few, small):
        cache.put(looks[0])
        cache.put(looks[1])
        assert cache.get("0") is looks[0]  # now 1 is the one not asked for longest
        cache.put(looks[2])
        assert cache.get("1") is None and cache.get("0") is looks[0] and len(cache) == 2
        assert cache.bytes == looks[0].size + looks[2].size
    with pytest.raises(ppmn.errors.InputError, match="the most is 0"):
        ImageCache(9, 100).put(looks[3])


def test_samples_and_settings(client: httpx.Client) -> None:
    about = client.get("/api/about").json()
    assert about["threshold"] == 0.5 and about["limits"]["upload"] == 40
    assert len(about["samples"]) >= 2
    for number, sample in enumerate(about["samples"]):
        answer = client.get(f"/api/samples/{number}")
        assert min(Image.open(io.BytesIO(answer.content)).size) >= 200 and sample["caption"]
    assert client.get(f"/api/samples/{len(about['samples'])}").status_code == 404
    text = client.get("/metrics").text
    assert 'ppmn_request_seconds_count{route="/api/about",status="200"}' in text


def test_no_request_that_the_document_allows_brings_the_server_down(client: httpx.Client) -> None:
    schema = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
    id = look(client, encoded(photo(30, 20))).json()["id"]
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
            with contextlib.suppress(Unsatisfiable):  # a request without parameters cannot be wrong
                settings(max_examples=12, deadline=None, derandomize=True, database=None)(attempt)()
    assert {200, 422} <= statuses and not {s for s in statuses if s >= 500}


def test_the_command_serves_and_says_where(folder: Path) -> None:
    with serving(str(folder), "--token", "t") as url:
        assert url.startswith("http://127.0.0.1:") and url.endswith("/?token=t")
        headers = {"Authorization": "Bearer t"}
        about = httpx.get(url.replace("?token=t", "api/about"), headers=headers, timeout=30).json()
        assert about["model"] == "model"


def test_bad_options_are_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", str(folder), "--max-queue", "0"]) == 2
    assert "--max-queue is 0" in capsys.readouterr().err
    assert main(["serve", "--model", str(folder), "--host", "192.0.2.1"]) == 2
    assert "192.0.2.1:8000 cannot be listened on" in capsys.readouterr().err
    assert main(["serve", "--model", str(folder), "--token", "zwölf"]) == 2
    assert "the token" in capsys.readouterr().err
    assert main(["serve", "--model", "no such model", "--port", "0"]) == 2


def test_a_caption_is_parsed_once_per_request(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    find = ppmn.grounding.grounder.find_phrases
    monkeypatch.setattr(
        "ppmn.grounding.grounder.find_phrases", lambda *a, **k: parsed.append(a) or find(*a, **k)
    )
    id = look(client, encoded(photo(seed=4))).json()["id"]
    client.post(f"/api/looks/{id}/ground", json={"caption": CAPTION}).raise_for_status()
    assert len(parsed) == 1
