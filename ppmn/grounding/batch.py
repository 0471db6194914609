"""Ground the images of a folder or of a JSONL list, each into a folder of its own."""

import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ppmn.errors import InputError
from ppmn.files import make_folder
from ppmn.grounding.formats import check_formats, save, slug
from ppmn.grounding.grounder import Grounder, load
from ppmn.grounding.result import Grounding
from ppmn.images import IMAGE_SUFFIXES
from ppmn.types import Span

RESULTS_FILE = "results.jsonl"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroundingJob:
    """One image with its caption; `problem` says why it cannot be grounded."""

    number: int  # of the file in its folder or of the line in its list
    image: Path
    caption: str = ""
    spans: list[Span] | None = None
    problem: str | None = None

    @property
    def folder(self) -> str:
        """The name of the folder for its results."""
        return f"{self.number:06d}_{slug(self.image.stem)}"


@dataclass(frozen=True)
class BatchOptions:
    """How captions are grounded, and what is written."""

    model: str = "compact"
    device: str | None = None
    threshold: float | None = None
    all_phrases: bool = False
    formats: tuple[str, ...] = ("json", "png", "html")
    boxes: bool = False

    def __post_init__(self) -> None:
        check_formats(self.formats)

    def ground(self, grounder: Grounder, job: GroundingJob) -> Grounding:
        """Ground one caption on its image."""
        return grounder.ground(
            job.image,
            job.caption,
            threshold=self.threshold,
            spans=job.spans,
            keep_rounds="rounds" in self.formats,
            all_phrases=self.all_phrases,
        )

    def key(self, job: GroundingJob) -> str:
        """What must be equal for the result of an earlier run to be kept."""
        settings = [self.model, self.threshold, self.formats, self.boxes, self.all_phrases]
        return json.dumps([str(job.image), job.caption, job.spans, *settings])


@dataclass(frozen=True)
class BatchSummary:
    """How many images were grounded and how many failed."""

    grounded: int
    failed: int
    results: Path


def read_jobs(source: Path, caption: str | None = None) -> list[GroundingJob]:
    """The images of a folder or of a JSONL list; a caption given here is used for all of them."""
    return list(_folder_jobs(source, caption) if source.is_dir() else _jsonl_jobs(source, caption))


def _folder_jobs(folder: Path, caption: str | None) -> Iterator[GroundingJob]:
    """Without a common caption each image has its own in the text file beside it."""
    images = sorted(f for f in folder.iterdir() if f.suffix.lower() in IMAGE_SUFFIXES and f.is_file())
    if not images:
        raise InputError(f"{folder} holds no image ({', '.join(IMAGE_SUFFIXES)})")
    for number, image in enumerate(images, 1):
        text_file = image.with_suffix(".txt")
        if caption is None and not text_file.is_file():
            yield GroundingJob(number, image, problem=f"there is no caption: {text_file.name} is missing")
            continue
        text = text_file.read_text(encoding="utf-8", errors="replace").strip() if caption is None else caption
        yield GroundingJob(number, image, text)


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
            row = json.loads(line)
            spans = row.get("spans")
            spans = None if spans is None else [(int(start), int(end)) for start, end in spans]
            text = row["caption"] if caption is None else caption
            if not isinstance(text, str):
                raise TypeError(f"its caption is {type(text).__name__}, not text")
            yield GroundingJob(number, file.parent / row["image"], text, spans)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            problem = f"line {number} is not an image with a caption ({reason})"
            yield GroundingJob(number, file, problem=problem)


def ground_jobs(jobs: Sequence[GroundingJob], out: Path, options: BatchOptions) -> BatchSummary:
    """Ground each job into a folder of `out` that appears when it is complete; finished jobs are skipped."""
    finished = _finished(make_folder(out))
    left = [job for job in jobs if finished.get(options.key(job)) != job.folder]
    if len(left) < len(jobs):
        logger.info("%d of %d images were finished before", len(jobs) - len(left), len(jobs))
    grounder = load(options.model, device=options.device) if left else None
    failed = 0
    with (out / RESULTS_FILE).open("a", encoding="utf-8") as results:
        for job in tqdm(left, unit="image", disable=None):
            row = {"key": options.key(job), "image": str(job.image)}
            try:
                assert grounder is not None
                row |= _ground_job(job, grounder, options, out)
            except InputError as error:
                failed += 1
                row["error"] = str(error)
                logger.warning("%s: %s", job.image, error)
            results.write(json.dumps(row) + "\n")
            results.flush()
    return BatchSummary(len(left) - failed, failed, out / RESULTS_FILE)


def _ground_job(job: GroundingJob, grounder: Grounder, options: BatchOptions, out: Path) -> dict[str, Any]:
    if job.problem is not None:
        raise InputError(job.problem)
    start = time.perf_counter()
    grounding = options.ground(grounder, job)
    for warning in grounding.warnings:
        logger.warning("%s: %s", job.image, warning)
    part, folder = out / f"{job.folder}.partial", out / job.folder
    for old in (part, folder):
        shutil.rmtree(old, ignore_errors=True)
    save(grounding, part, formats=options.formats, boxes=options.boxes)
    part.replace(folder)
    phrases = [{"text": p.text, "span": p.span, "score": round(p.score, 4), "box": p.box} for p in grounding]
    return {"folder": job.folder, "phrases": phrases, "seconds": round(time.perf_counter() - start, 3)}


def _finished(out: Path) -> dict[str, str]:
    """Folder by key of what an earlier run finished; a line cut short by a crash is ignored."""
    file, finished = out / RESULTS_FILE, {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        with suppress(json.JSONDecodeError):
            row = json.loads(line)
            if "folder" in row and (out / row["folder"]).is_dir():
                finished[row["key"]] = row["folder"]
    return finished
