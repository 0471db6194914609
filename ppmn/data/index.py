"""The index of narratives on disk: uncompressed Arrow in the user's cache."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ppmn.data.narratives import AnnotatedPhrase, Narrative
from ppmn.data.panoptic import Segment, folders
from ppmn.errors import InputError

BATCH = 4096  # narratives in one Arrow batch: bounds the memory of building, not of reading
SEGMENT = tuple(f.name for f in fields(Segment))
PHRASE = tuple(f.name for f in fields(AnnotatedPhrase))


def cache_folder() -> Path:
    """$PPMN_CACHE, or `ppmn` in the user's cache folder of this platform."""
    if own := os.environ.get("PPMN_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "ppmn"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ppmn"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "ppmn" / "cache"
    return Path.home() / ".cache" / "ppmn"


def write_index(
    narratives: Sequence[Narrative], about: dict[str, Any], root: Path, split: str, file: Path
) -> None:
    """Write uncompressed Arrow, so that a row is read where it lies; `about` is kept beside the rows."""
    pa = pyarrow()
    schema = _schema(pa).with_metadata({"ppmn": json.dumps(about)})
    photos, pngs = folders(root, split)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            part = Path(folder) / file.name
            with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for first in range(0, len(narratives), BATCH):
                    rows = [_row(n, photos, pngs) for n in narratives[first : first + BATCH]]
                    writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
            part.replace(file)
    except OSError as error:
        raise InputError(f"the cache {file.parent} cannot be written ({error}); set PPMN_CACHE") from error


def _schema(pa: Any) -> Any:
    number, flag, text = pa.int64(), pa.bool_(), pa.string()
    box = pa.list_(number, 4)
    segment = {"id": number, "category_id": number, "area": number, "bbox": box, "iscrowd": flag}
    phrase = {"start": number, "end": number, "segment_ids": pa.list_(number)} | {
        "isthing": flag,
        "absent": flag,
    }
    image = {"image_id": number, "photo": text, "segmentation": text, "height": number, "width": number}
    segments = pa.list_(pa.struct(segment | {"score": pa.float64()}))
    narrative = {"index": number, "caption": text, "phrases": pa.list_(pa.struct(phrase))}
    return pa.schema(image | {"segments": segments} | narrative)


def _row(narrative: Narrative, photos: Path, pngs: Path) -> dict[str, Any]:
    image = narrative.image
    return {
        "image_id": image.id,
        "photo": _name(image.file, photos),
        "segmentation": _name(image.segmentation, pngs),
        "height": image.height,
        "width": image.width,
        "segments": [_fields(s, SEGMENT) for s in image.segments],
        "index": narrative.index,
        "caption": narrative.caption,
        "phrases": [_fields(p, PHRASE) for p in narrative.phrases],
    }


def _fields(thing: Segment | AnnotatedPhrase, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def _name(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def pyarrow() -> Any:
    """The package, or a sentence that says where to get it."""
    try:
        import pyarrow as arrow
        import pyarrow.ipc
    except ImportError as error:
        raise InputError("reading narratives needs pyarrow: pip install 'ppmn[train]'") from error
    return arrow
