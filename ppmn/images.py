"""Images as they come, upright and in RGB; masks as COCO RLE, segment ids as RGB."""

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from pycocotools import mask as coco_mask

from ppmn.errors import InputError
from ppmn.types import Mask, SegmentIds

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".avif", ".heic", ".heif"),
)
# Formats that not every installation reads, by the brand in a file's first bytes, and what to install.
_BRANDS = {b"avif": "AVIF", b"avis": "AVIF"}
_BRANDS |= dict.fromkeys((b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"), "HEIC")
INSTALL = {"AVIF": "pip install --upgrade pillow", "HEIC": "pip install 'ppmn[heif]'"}
_ORIENTATION = 0x0112  # the EXIF tag
MAX_PIXELS = 150_000_000  # 10,000 x 10,000 and 12,000 x 9,000 pass; in RGB this is 600 MB


class MissingDecoderError(InputError):
    """An image in a known format whose decoder is not installed.

    Attributes:
        format: The name of the format, a key of `INSTALL`.
    """

    def __init__(self, name: str, format: str) -> None:
        super().__init__(f"{name} is an {format} file, which is not read without {INSTALL[format]}")
        self.format = format


ImageInput = str | Path | bytes | Image.Image | NDArray  # a file, its bytes, or pixels


def read_image(image: ImageInput, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """An image upright (EXIF orientation applied), in RGB, on white where it is transparent."""
    if isinstance(image, Image.Image):
        return _checked(image, "the image", max_pixels)
    if isinstance(image, str | Path):
        file = Path(image).expanduser()
        if not file.is_file():
            raise InputError(f"{image} is not a file")
        return _decoded(file, str(image), max_pixels)
    if isinstance(image, bytes | bytearray | memoryview):
        return _decoded(io.BytesIO(image), "the image", max_pixels)
    return _checked(_from_array(image), "the array", max_pixels)


def encode_image_file(image: Image.Image, format: str, **options: Any) -> bytes:
    """The bytes of an image file, with Pillow's options for its format."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def encode_rle(mask: Mask) -> dict[str, Any]:
    """A mask as COCO's compressed RLE, ready for JSON."""
    rle = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": list(rle["size"]), "counts": rle["counts"].decode("ascii")}


def decode_rle(rle: Mapping[str, Any]) -> Mask:
    """The mask of a compressed RLE."""
    mask: Mask = coco_mask.decode({"size": rle["size"], "counts": rle["counts"].encode("ascii")}).astype(bool)
    return mask


def ids_to_rgb(ids: SegmentIds) -> NDArray[np.uint8]:
    """Segment ids (H, W) as the colours (H, W, 3) of a COCO panoptic PNG: R + 256 G + 65536 B is the id."""
    return np.stack([(ids >> shift & 255).astype(np.uint8) for shift in (0, 8, 16)], -1)


def rgb_to_ids(rgb: NDArray[np.uint8]) -> SegmentIds:
    """The segment ids of a COCO panoptic PNG."""
    red, green, blue = (rgb[..., channel].astype(np.int32) for channel in range(3))
    return red + 256 * green + 65_536 * blue


def _decoded(source: Path | io.BytesIO, name: str, max_pixels: int) -> Image.Image:
    """The first frame of a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `max_pixels` is our own limit
        warnings.filterwarnings("ignore", "image file could not be identified")  # said below
        try:
            with Image.open(source, formats=(*_FORMATS, *_heif())) as image:
                return _checked(image, name, max_pixels)
        except InputError:
            raise
        except Image.UnidentifiedImageError as error:
            if format := _recognised(source):
                raise MissingDecoderError(name, format) from error
            known = ", ".join((*_FORMATS, *_heif()))
            raise InputError(f"{name} is not an image in a format that can be read ({known})") from error
        except Image.DecompressionBombError as error:
            raise InputError(f"{name} has more than {max_pixels:,} pixels, the limit") from error
        except Exception as error:  # a damaged file makes decoders raise nearly anything
            raise InputError(f"{name} is damaged or cut short ({error})") from error


def _heif() -> tuple[str, ...]:
    """The name of the HEIC format if pillow-heif is installed, which adds it to Pillow."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return ()
    register_heif_opener()
    return ("HEIF",)


def _recognised(source: Path | io.BytesIO) -> str | None:
    """The format of a file that Pillow does not read, by its first bytes."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            start = file.read(12)
    else:
        start = source.getvalue()[:12]
    return _BRANDS.get(start[8:12]) if start[4:8] == b"ftyp" else None


def _checked(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
    if image.width * image.height > max_pixels:
        raise InputError(
            f"{name} has {image.width:,} x {image.height:,} pixels; the limit is {max_pixels:,} in all"
        )
    if not image.width * image.height:
        raise InputError(f"{name} has no pixels: it is {image.width} x {image.height}")
    image.load()
    upright = ImageOps.exif_transpose(image) if image.getexif().get(_ORIENTATION, 1) != 1 else image
    return upright if upright.mode == "RGB" and not upright.has_transparency_data else _rgb(upright)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return Image.fromarray(_eight_bit(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


def _eight_bit(values: NDArray) -> NDArray[np.uint8]:
    """Grey values of any depth: 16-bit ones by their upper byte, others stretched over their range."""
    if values.dtype == np.uint16 or (values.dtype.kind in "iu" and 255 < values.max() <= 65_535):
        return (values >> 8).astype(np.uint8)
    if values.min() >= 0 and values.max() <= 1 and values.dtype.kind == "f":
        return (values * 255 + 0.5).astype(np.uint8)
    if values.min() >= 0 and values.max() <= 255:
        return values.astype(np.uint8)
    low, high = float(values.min()), float(values.max())
    if not np.isfinite(high - low):
        raise InputError("the image holds values that are not finite")
    return ((values - low) * (255 / (high - low))).astype(np.uint8)


def _from_array(array: NDArray) -> Image.Image:
    """(H, W), (H, W, 1), (H, W, 3) or (H, W, 4); 8 or 16 bits, or floats from 0 to 1."""
    if isinstance(array, list | tuple):
        raise InputError(f"a {type(array).__name__} is not an image; encode_batch takes several images")
    values = np.asarray(array)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (3, 4)) or not values.size:
        raise InputError(
            f"an image of shape {values.shape} cannot be read; it must be (H, W), (H, W, 3) or (H, W, 4)"
        )
    if values.dtype == np.bool_:
        values = values.astype(np.uint8) * 255
    elif values.dtype == np.uint16 or (values.dtype.kind == "f" and values.min() >= 0 and values.max() <= 1):
        values = _eight_bit(values)
    if values.dtype != np.uint8:
        raise InputError(
            f"an image of {values.dtype} cannot be read; it must hold uint8, uint16, or floats from 0 to 1"
        )
    return Image.fromarray(np.ascontiguousarray(values))
