"""Ground the images of a folder (with its sub-folders) or of a JSONL list, each into a folder of its own."""

import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ppmn.errors import InputError
from ppmn.files import make_writable_folder
from ppmn.grounding.formats import check_formats, save, slug
from ppmn.grounding.grounder import Grounder, load
from ppmn.grounding.result import Grounding
from ppmn.grounding.runtime import RuntimeName, RuntimePrecision
from ppmn.images import IMAGE_SUFFIXES, ImageInput, MissingDecoderError
from ppmn.model.locate import model_digests
from ppmn.types import Span

RESULTS_FILE = "results.jsonl"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroundingJob:
    """One image with its caption; `problem` says why it cannot be grounded.

    Attributes:
        image: The image file.
        folder: Where its results are written, relative to the folder of all results.
        caption: Its caption.
        spans: Start and end of each phrase; None finds the noun phrases.
        problem: A sentence, if the job cannot be done.
    """

    image: Path
    folder: str
    caption: str = ""
    spans: list[Span] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class BatchOptions:
    """How captions are grounded, and what is written."""

    model: str = "compact"
    device: str | None = None
    threshold: float | None = None
    all_phrases: bool = False
    formats: tuple[str, ...] = ("json", "png", "html")
    boxes: bool = False
    keep_absent: bool = False
    instances: bool = False
    runtime: RuntimeName = "auto"
    precision: RuntimePrecision = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        check_formats(self.formats)

    def load(self) -> Grounder:
        """The model, ready to ground."""
        return load(
            self.model,
            device=self.device,
            runtime=self.runtime,
            precision=self.precision,
            threads=self.threads,
        )

    def ground(
        self, grounder: Grounder, image: ImageInput, caption: str, spans: list[Span] | None = None
    ) -> Grounding:
        """Ground one caption on its image."""
        return grounder.ground(
            image,
            caption,
            threshold=self.threshold,
            spans=spans,
            keep_rounds="rounds" in self.formats,
            all_phrases=self.all_phrases,
            keep_absent=self.keep_absent,
        )

    def save(self, grounding: Grounding, folder: Path) -> list[Path]:
        """Write what is asked for."""
        return save(grounding, folder, formats=self.formats, boxes=self.boxes, instances=self.instances)

    def key(self, job: GroundingJob, digests: tuple[str, str]) -> str:
        """What must be equal for the result of an earlier run to be kept; `digests` are the model's."""
        settings = [self.model, *digests, self.threshold, self.formats, self.boxes, self.all_phrases]
        settings += [self.keep_absent, self.instances]
        return json.dumps([str(job.image), _file_state(job.image), job.caption, job.spans, *settings])


@dataclass(frozen=True)
class BatchSummary:
    """How many images were grounded and how many failed.

    Attributes:
        grounded: Images that were grounded in this run.
        failed: Images that could not be.
        missing_decoders: Of these, how many need a decoder that is not installed, by format.
        results: The file with one line per image.
    """

    grounded: int
    failed: int
    missing_decoders: Mapping[str, int]
    results: Path


def read_jobs(
    source: Path, caption: str | None = None, *, leave_out: Path | None = None
) -> Iterator[GroundingJob]:
    """The images of a folder or of a JSONL list, one at a time.

    Args:
        source: A folder, with its sub-folders, or a JSONL list.
        caption: One caption for all images, in place of their own.
        leave_out: A folder inside `source` that is not read, such as the one that results are written to.

    Returns:
        The jobs, in a stable order.
    """
    if source.is_dir():
        return _folder_jobs(source, caption, leave_out)
    return _jsonl_jobs(source, caption)


def find_images(folder: Path, *, leave_out: Path | None = None) -> Iterator[Path]:
    """The image files of a folder and its sub-folders, by name; a folder's own files come first.

    Hidden files and folders are left out, links to folders are not followed, and a folder that cannot be
    read is reported in the log.
    """
    unread = leave_out.resolve() if leave_out else None
    for place, folders, files in os.walk(folder, onerror=lambda error: logger.warning("%s", error)):
        here = Path(place)
        kept = [name for name in folders if not name.startswith(".") and (here / name).resolve() != unread]
        folders[:] = sorted(kept)
        for name in sorted(files):
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES:
                yield here / name


def _folder_jobs(folder: Path, caption: str | None, leave_out: Path | None) -> Iterator[GroundingJob]:
    """Without a common caption each image has its own in the text file beside it."""
    found = False
    for image in find_images(folder, leave_out=leave_out):
        found = True
        own = image.relative_to(folder).as_posix()
        text_file = image.with_suffix(".txt")
        if caption is None and not text_file.is_file():
            yield GroundingJob(image, own, problem=f"there is no caption: {text_file.name} is missing")
            continue
        text = text_file.read_text(encoding="utf-8", errors="replace").strip() if caption is None else caption
        yield GroundingJob(image, own, text)
    if not found:
        raise InputError(f"{folder} and its sub-folders hold no image ({', '.join(IMAGE_SUFFIXES)})")


def _jsonl_jobs(file: Path, caption: str | None) -> Iterator[GroundingJob]:
    """A line is `{"image": FILE, "caption": TEXT, "spans": [[START, END], ...]}`; spans may be left out."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            image, text, spans = read_list_line(line, number, caption)
            place = file.parent / image
            yield GroundingJob(place, f"{number:06d}_{slug(place.stem)}", text, spans)
        except InputError as error:
            yield GroundingJob(file, f"{number:06d}", problem=str(error))


def read_list_line(line: str, number: int, caption: str | None) -> tuple[str, str, list[Span] | None]:
    """The image, the caption (or the one that is given) and the spans of one line of a list."""
    try:
        row = json.loads(line)
        spans = row.get("spans")
        spans = None if spans is None else [(int(start), int(end)) for start, end in spans]
        text = row["caption"] if caption is None else caption
        for name, value in (("image", row["image"]), ("caption", text)):
            if not isinstance(value, str):
                raise TypeError(f"its {name} is {type(value).__name__}, not text")
        return row["image"], text, spans
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"line {number} is not an image with a caption ({reason})") from error


def ground_jobs(jobs: Iterable[GroundingJob], out: Path, options: BatchOptions) -> BatchSummary:
    """Ground each job into a folder of `out` that appears when it is complete; finished jobs are skipped."""
    earlier = _finished(make_writable_folder(out))
    digests = model_digests(options.model)
    grounder: Grounder | None = None
    counts: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    with (out / RESULTS_FILE).open("a", encoding="utf-8") as results:
        for job in tqdm(jobs, unit="image", disable=None):
            key = options.key(job, digests)
            if earlier.get(key) == job.folder:
                counts["earlier"] += 1
                continue
            grounder = grounder or options.load()
            row = {"key": key, "image": str(job.image)}
            try:
                row |= _ground_job(job, grounder, options, out)
                counts["grounded"] += 1
            except InputError as error:
                counts["failed"] += 1
                if isinstance(error, MissingDecoderError):
                    missing[error.format] += 1
                row["error"] = str(error)
                named = str(error).startswith(str(job.image))
                logger.warning("%s", error if named else f"{job.image}: {error}")
            results.write(json.dumps(row) + "\n")
            results.flush()
    if counts["earlier"]:
        logger.info("%d of %d images were finished before", counts["earlier"], counts.total())
    return BatchSummary(counts["grounded"], counts["failed"], missing, out / RESULTS_FILE)


def _ground_job(job: GroundingJob, grounder: Grounder, options: BatchOptions, out: Path) -> dict[str, Any]:
    if job.problem is not None:
        raise InputError(job.problem)
    part, folder = out / f"{job.folder}.partial", out / job.folder
    if folder.is_file():
        raise InputError(f"{folder} is a file, not a folder for results; give another folder with -o DIR")
    start = time.perf_counter()
    grounding = options.ground(grounder, job.image, job.caption, job.spans)
    for warning in grounding.warnings:
        logger.warning("%s: %s", job.image, warning)
    for old in (part, folder):
        shutil.rmtree(old, ignore_errors=True)
    options.save(grounding, part)
    part.replace(folder)
    phrases = [
        {"text": p.text, "span": p.span, "score": round(p.score, 4), "box": p.box}
        | {"absent": p.absent, "foreign": p.foreign}
        for p in grounding
    ]
    return {"folder": job.folder, "phrases": phrases, "seconds": round(time.perf_counter() - start, 3)}


def _file_state(file: Path) -> tuple[int, int] | None:
    """The size of a file and the time of its last change; None if it cannot be read."""
    try:
        state = file.stat()
    except (OSError, ValueError):  # a list may name anything
        return None
    return state.st_size, state.st_mtime_ns


def _finished(out: Path) -> dict[str, str]:
    """Folder by key of what an earlier run finished; a line cut short by a crash is ignored."""
    file, finished = out / RESULTS_FILE, {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        with suppress(json.JSONDecodeError):
            row = json.loads(line)
            if "folder" in row and (out / row["folder"]).is_dir():
                finished[row["key"]] = row["folder"]
    return finished
