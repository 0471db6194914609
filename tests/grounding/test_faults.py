"""Unusual images and captions: each gives masks of the image's size, or a one-sentence error."""

import io
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.models import bert_folder, small_ppmn

from ppmn.errors import InputError
from ppmn.grounding.coco import to_coco
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.page import to_html
from ppmn.images import MissingDecoderError, read_image

CAPTION = "two dogs on the green grass"


@pytest.fixture(scope="module")
def grounder(tmp_path_factory: pytest.TempPathFactory) -> Grounder:
    return Grounder(small_ppmn(bert_folder(tmp_path_factory.mktemp("bert"))))


def gradient(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    ramp = Image.linear_gradient("L").resize(size)
    return Image.merge("RGB", [ramp, ramp.rotate(90), ramp.rotate(180)]).convert(mode)


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def sixteen_bit() -> bytes:
    ramp = np.linspace(0, 65_535, 40 * 30).reshape(30, 40).astype(np.uint16)
    return encoded(Image.fromarray(ramp), "PNG")


def palette_with_transparency() -> bytes:
    image = gradient("P")
    return encoded(image, "PNG", transparency=image.getpixel((0, 0)))


def animated(form: str) -> bytes:
    frames = [gradient().rotate(90 * turn) for turn in range(3)]
    return encoded(frames[0], form, save_all=True, append_images=frames[1:])


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    return encoded(gradient(), "JPEG", exif=exif)


GOOD = {
    "1x1": (encoded(gradient(size=(1, 1)), "PNG"), (1, 1)),
    "1 high": (encoded(gradient(size=(3000, 1)), "PNG"), (3000, 1)),
    "1 wide": (encoded(gradient(size=(1, 3000)), "PNG"), (1, 3000)),
    "greyscale": (encoded(gradient("L"), "JPEG"), (40, 30)),
    "grey and alpha": (encoded(gradient("LA"), "PNG"), (40, 30)),
    "alpha": (encoded(gradient("RGBA"), "WEBP"), (40, 30)),
    "one bit": (encoded(gradient("1"), "TIFF"), (40, 30)),
    "cmyk": (encoded(gradient("CMYK"), "JPEG"), (40, 30)),
    "cmyk tiff": (encoded(gradient("CMYK"), "TIFF"), (40, 30)),
    "palette": (palette_with_transparency(), (40, 30)),
    "16 bits": (sixteen_bit(), (40, 30)),
    "floats": (encoded(gradient("F"), "TIFF"), (40, 30)),
    "gif": (animated("GIF"), (40, 30)),
    "webp": (animated("WEBP"), (40, 30)),
    "bmp": (encoded(gradient(), "BMP"), (40, 30)),
    "rotated": (rotated(), (30, 40)),
    "avif": (encoded(gradient(), "AVIF"), (40, 30)),
}
BAD = {
    "nothing": b"",
    "text": b"this is not an image",
    "zip": b"PK\x03\x04" + bytes(200),
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "half a jpeg": encoded(gradient(size=(400, 300)), "JPEG")[:1500],
    "half a png": encoded(gradient(size=(400, 300)), "PNG")[:500],
    "half a tiff": encoded(gradient(size=(400, 300)), "TIFF")[:5000],
    "half a gif": animated("GIF")[:300],
}


@pytest.mark.parametrize("name", GOOD)
def test_any_image_gets_masks_of_its_size(grounder: Grounder, name: str) -> None:
    content, (width, height) = GOOD[name]
    for phrase in grounder.ground(content, CAPTION):
        assert phrase.mask.shape == phrase.response.shape == (height, width)


@pytest.mark.parametrize("name", BAD)
def test_bad_image_is_refused(grounder: Grounder, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        grounder.encode(BAD[name])
    assert len(str(refused.value).splitlines()) == 1
    (tmp_path / "image.jpg").write_bytes(BAD[name])
    with pytest.raises(InputError, match=r"image\.jpg"):
        grounder.encode(tmp_path / "image.jpg")


def test_heic_is_read(grounder: Grounder) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    content = encoded(gradient(size=(64, 48)), "HEIF")
    assert grounder.ground(content, CAPTION)[0].mask.shape == (48, 64)
    assert read_image(content).getpixel((5, 40)) == pytest.approx(
        gradient(size=(64, 48)).getpixel((5, 40)), abs=12
    )


@pytest.mark.parametrize(
    ("brand", "name", "command"),
    [("heic", "HEIC", "'ppmn[heif]'"), ("mif1", "HEIC", "'ppmn[heif]'"), ("avif", "AVIF", "pillow")],
)
def test_missing_decoder_is_named(
    brand: str, name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr("PIL.AvifImagePlugin.SUPPORTED", False)
    content = b"\0\0\0\x18ftyp" + brand.encode() + bytes(4) + b"mif1" + bytes(50)
    (tmp_path / "image.heic").write_bytes(content)
    for image in (content, tmp_path / "image.heic"):
        with pytest.raises(
            MissingDecoderError, match=f"is an {name} file, .* pip install .*{re.escape(command)}"
        ):
            read_image(image)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_corrupted_image_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from([c for c, _ in GOOD.values()])))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert read_image(bytes(content), max_pixels=10_000_000).mode == "RGB"
    except InputError as error:
        assert str(error)


def test_colors_survive_conversion() -> None:
    assert read_image(rotated()).getpixel((0, 0)) == pytest.approx(
        gradient().rotate(-90, expand=True).getpixel((0, 0)), abs=12
    )
    grey = np.asarray(read_image(sixteen_bit()))
    assert grey[0, 0].max() == 0 and grey[-1, -1].min() == 255 and 120 < grey.mean() < 135
    clear = Image.new("RGBA", (2, 2), (255, 0, 0, 0))
    assert read_image(clear).getpixel((0, 0)) == (255, 255, 255)
    cyan = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    red, green, blue = read_image(encoded(cyan, "JPEG")).getpixel((4, 4))
    assert red < 60 and min(green, blue) > 180
    first = read_image(animated("GIF")).getpixel((0, 0))
    assert first == pytest.approx(gradient().getpixel((0, 0)), abs=30)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, bool])
@pytest.mark.parametrize("shape", [(30, 40), (30, 40, 1), (30, 40, 3), (30, 40, 4)])
def test_arrays(dtype: type, shape: tuple[int, ...]) -> None:
    white = 1 if dtype in (np.float32, bool) else np.iinfo(dtype).max
    image = read_image(np.full(shape, white, dtype))
    assert image.size == (40, 30) and image.getpixel((3, 3)) == (255, 255, 255)


@pytest.mark.parametrize(
    "array", [np.zeros((3, 30, 40)), np.zeros(5), np.zeros((0, 4)), np.full((4, 4), 7.0), np.full((4, 4), -1)]
)
def test_bad_array_is_refused(array: np.ndarray) -> None:
    with pytest.raises(InputError):
        read_image(array)


def bomb(width: int, height: int) -> bytes:
    """A small PNG whose header claims a large size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [13_000, 60_000])
def test_image_beyond_the_limit_is_refused_before_decoding(side: int) -> None:
    with pytest.raises(InputError, match="150,000,000"):
        read_image(bomb(side, side))


@pytest.mark.parametrize(
    "caption", ["", "   \n", "and of the", "!?", "\ud800", "[ ]", "[a", "a]", "this image"]
)
def test_caption_without_phrases_is_refused(grounder: Grounder, caption: str) -> None:
    with pytest.raises(InputError) as refused:
        grounder.ground(gradient(), caption)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "caption",
    [
        "A dog 🐕‍🦺 and a cat 😀 on the grass",
        "[😀] and [猫] and [كلب] and [кошка]",
        "a dog\x00and\x1b[31m a cat\u202e on grass",
        "<script>alert('a dog')</script>",
        "A DOG AND A CAT",
        "a naïve café with a jalapeño",
        "a dog " * 50 + "x" * 5000,
    ],
)
def test_any_text_is_grounded_or_refused(grounder: Grounder, caption: str) -> None:
    try:
        found = grounder.ground(gradient(), caption)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert all(found.caption[slice(*p.span)] == p.text for p in found)
    assert found[0].mask.shape == (30, 40) and to_html(found) and to_coco(found)


def test_caption_of_two_thousand_words(grounder: Grounder) -> None:
    caption = " ".join("there are two dogs and a red ball on the green grass ." for _ in range(167))
    found = grounder.ground(gradient(), caption)
    assert len(found) >= 400 and found[-1].mask.shape == (30, 40)


@pytest.mark.parametrize("spans", [[(0, 99)], [(3, 3)], [(-1, 4)]])
def test_span_outside_the_caption_is_refused(grounder: Grounder, spans: list[tuple[int, int]]) -> None:
    with pytest.raises(InputError):
        grounder.ground(gradient(), CAPTION, spans=spans)


LARGE = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import numpy as np
from support.models import small_ppmn
from PIL import Image
from ppmn.grounding.formats import save
from ppmn.grounding.grounder import Grounder
file = Path({folder!r}) / "large.png"
Image.fromarray(np.zeros((10_000, 10_000, 3), np.uint8)).save(file, compress_level=1)
grounder = Grounder(small_ppmn(Path({folder!r}) / "bert"))
found = grounder.ground(file, "two dogs on the green grass", keep_rounds=True, threshold=0.3)
assert found[0].mask.shape == (10_000, 10_000)
save(found, Path({folder!r}) / "out", formats={formats!r})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


@pytest.mark.parametrize(
    "formats",
    [
        ("json",),
        pytest.param(("json", "png", "panoptic", "html", "rounds"), marks=pytest.mark.soak),
        pytest.param(("polygons", "labelme", "cutouts", "contact"), marks=pytest.mark.soak),
    ],
)
def test_image_of_100_megapixels_stays_within_memory(tmp_path: Path, formats: tuple[str, ...]) -> None:
    """In a process of its own, within 4 GB."""
    bert_folder(tmp_path / "bert")
    code = LARGE.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path), formats=formats)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 4
