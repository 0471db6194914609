"""The `ppmn ground` command: one photo with its caption, or many, with what the terminal shows of them."""

import io
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ppmn.errors import InputError
from ppmn.grounding.formats import check_formats, slug
from ppmn.grounding.grounder import Grounder, load
from ppmn.grounding.render import colour
from ppmn.grounding.result import Grounding
from ppmn.images import SUFFIXES
from ppmn.types import Span

RESULTS = "results.jsonl"
PARTIAL = ".partial"


@dataclass(frozen=True)
class Options:
    """What `ppmn ground` was asked for, besides photos and captions."""

    model: str
    device: str | None
    threshold: float | None
    output: Path | None
    formats: tuple[str, ...]
    boxes: bool
    empties: bool

    def run(self, grounder: Grounder, job: "Job") -> Grounding:
        rounds = "rounds" in self.formats and self.output is not None
        return grounder.ground(
            job.photo,
            job.caption,
            threshold=self.threshold,
            spans=job.spans,
            keep_rounds=rounds,
            all_phrases=self.empties,
        )

    def key(self, job: "Job") -> str:
        """What must be the same for a result of an earlier run to stand."""
        settings = [self.model, self.threshold, self.formats, self.boxes, self.empties]
        return json.dumps([str(job.photo), job.caption, job.spans, *settings])


@dataclass(frozen=True)
class Job:
    """One photo of many; `number` counts lines or files and `problem` says why it cannot be tried."""

    number: int
    photo: Path
    caption: str = ""
    spans: list[Span] | None = None
    problem: str | None = None

    @property
    def folder(self) -> str:
        return f"{self.number:06d}_{slug(self.photo.stem)}"


def ground_command(source: str, caption: str | None, options: Options) -> int:
    """Ground one photo, or every photo of a folder or a JSONL file."""
    check_formats(options.formats)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a letter shows another
    path = Path(source).expanduser()
    if caption == "-":
        caption = sys.stdin.read().strip()
    if path.is_dir() or path.suffix.lower() == ".jsonl":
        if options.output is None:
            raise InputError("many photos need a folder to write to: give it with -o DIR")
        jobs = list(folder_jobs(path, caption) if path.is_dir() else jsonl_jobs(path, caption))
        return run_many(jobs, options, options.output)
    if caption is None:
        raise InputError("there is no caption: give it after the photo, or - to read it from standard input")
    if not path.is_file():
        raise InputError(f"{source} is not a file")
    grounder = load(options.model, device=options.device)
    grounding = options.run(grounder, Job(1, path, caption))
    print(report(grounding, _colours()))
    if options.output is not None:
        files = grounding.save(options.output, options.formats, options.boxes)
        shown = [f for f in files if f.parent.name != "masks"]
        print(*(f"  {file}" for file in shown), sep="\n")
        if len(shown) < len(files):
            print(f"  {options.output / 'masks'}: {len(files) - len(shown)} masks")
    return 0


def folder_jobs(folder: Path, caption: str | None) -> Iterator[Job]:
    """Every photo of a folder with the one caption, or each with the caption in the text file beside it."""
    photos = sorted(f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and f.is_file())
    if not photos:
        raise InputError(f"{folder} holds no photo ({', '.join(SUFFIXES)})")
    for number, photo in enumerate(photos, 1):
        beside = photo.with_suffix(".txt")
        if caption is not None:
            yield Job(number, photo, caption)
        elif beside.is_file():
            yield Job(number, photo, beside.read_text(encoding="utf-8", errors="replace").strip())
        else:
            yield Job(number, photo, problem=f"there is no caption: {beside.name} is missing")


def jsonl_jobs(file: Path, caption: str | None) -> Iterator[Job]:
    """A line is `{"photo": FILE, "caption": TEXT, "spans": [[START, END], ...]}`; spans may be left out."""
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
            yield Job(number, file.parent / row["photo"], text, spans)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            yield Job(number, file, problem=f"line {number} is not a photo with a caption ({reason})")


def run_many(jobs: Sequence[Job], options: Options, output: Path) -> int:
    """Each job to a folder of its own, which appears when it is whole; what is there is not done again."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {output} cannot be made ({error.strerror})") from error
    done = finished(output)
    left = [job for job in jobs if done.get(options.key(job)) != job.folder]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} are there from before")
    grounder = load(options.model, device=options.device) if left else None
    failed = 0
    with (output / RESULTS).open("a", encoding="utf-8") as results:
        for job in tqdm(left, unit="photo", disable=None):
            row = {"key": options.key(job), "photo": str(job.photo)}
            try:
                assert grounder is not None
                row |= run_one(job, grounder, options, output)
            except InputError as error:
                failed += 1
                row["error"] = str(error)
                tqdm.write(f"{job.photo}: {error}", file=sys.stderr)
            results.write(json.dumps(row) + "\n")
            results.flush()
    print(f"{len(left) - failed} grounded, {failed} failed; {output / RESULTS} lists them")
    return int(failed > 0)


def run_one(job: Job, grounder: Grounder, options: Options, output: Path) -> dict[str, Any]:
    if job.problem is not None:
        raise InputError(job.problem)
    start = time.perf_counter()
    grounding = options.run(grounder, job)
    part, folder = output / f"{job.folder}{PARTIAL}", output / job.folder
    for old in (part, folder):
        shutil.rmtree(old, ignore_errors=True)
    grounding.save(part, options.formats, options.boxes)
    part.replace(folder)
    phrases = [{"text": p.text, "span": p.span, "score": round(p.score, 4), "box": p.box} for p in grounding]
    return {"folder": job.folder, "phrases": phrases, "seconds": round(time.perf_counter() - start, 3)}


def finished(output: Path) -> dict[str, str]:
    """Folder by key of what an earlier run finished; a line cut short by a crash is passed over."""
    file, done = output / RESULTS, {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "folder" in row and (output / row["folder"]).is_dir():
            done[row["key"]] = row["folder"]
    return done


def report(grounding: Grounding, colours: bool) -> str:
    """The caption with its phrases coloured (or in brackets), then a line a phrase."""
    lines = [_marked(grounding, colours), ""]
    width = max(min(len(p.text), 40) for p in grounding)
    whole = grounding.image.width * grounding.image.height
    for number, phrase in enumerate(grounding):
        name = _paint(f"{number + 1:3d} {_plain(phrase.text)[:40]:{width}}", number, colours)
        if phrase.box is None:
            lines.append(f"{name}  nowhere above {grounding.threshold:g}")
            continue
        x, y, w, h = phrase.box
        share = 100 * phrase.area / whole
        lines.append(f"{name}  score {phrase.score:.2f}  area {share:5.1f} %  box {x},{y} {w}x{h}")
    if grounding.skipped:
        lines.append(f"not looked for: {', '.join(dict.fromkeys(_plain(p.text) for p in grounding.skipped))}")
    return "\n".join(lines)


def _marked(grounding: Grounding, colours: bool) -> str:
    text, at = "", 0
    for number, phrase in sorted(enumerate(grounding), key=lambda pair: pair[1].span):
        start, end = phrase.span
        if start < at:  # inside a phrase that is marked already
            continue
        words = _plain(grounding.caption[start:end])
        text += _plain(grounding.caption[at:start])
        text += _paint(words, number, True) if colours else f"[{words}]"
        at = end
    return text + _plain(grounding.caption[at:])


def _paint(text: str, number: int, colours: bool) -> str:
    r, g, b = colour(number)
    return f"\x1b[1;38;2;{r};{g};{b}m{text}\x1b[0m" if colours else text


def _plain(text: str) -> str:
    """Without what would steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _colours() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
