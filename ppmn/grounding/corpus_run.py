"""Ground a corpus of any size on Ray: on this machine or on a cluster, and again where a run was stopped."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ppmn import __version__
from ppmn.errors import InputError
from ppmn.files import check_writable
from ppmn.grounding.corpus_items import Chunk
from ppmn.grounding.corpus_pool import PoolOptions, connected, import_ray, run_pool
from ppmn.grounding.corpus_shards import ResultFolder, write_coco
from ppmn.grounding.corpus_sources import CorpusSource
from ppmn.grounding.corpus_worker import ChunkWorker, CorpusSettings

_log = logging.getLogger(__name__)
_LOGGED_FAILURES = 20


@dataclass(frozen=True)
class CorpusSummary:
    """What a run did, and what is there now.

    Attributes:
        grounded: Images that were grounded in this run.
        failed: Images that failed in this run.
        images: Images with rows in the shards, of this run and earlier ones.
        phrases: Rows in the shards.
        errors: Rows in `errors.parquet`.
        seconds: How long the run took.
    """

    grounded: int
    failed: int
    images: int
    phrases: int
    errors: int
    seconds: float


def corpus(
    source: str | Path,
    out: str | Path,
    *,
    model: str = "compact",
    caption: str | None = None,
    threshold: float | None = None,
    all_phrases: bool = False,
    keep_absent: bool = False,
    batch_size: int = 1,
    shard_size: int = 32,
    coco: Path | None = None,
    pool: PoolOptions | None = None,
) -> CorpusSummary:
    """Ground all images of a corpus into Parquet shards; what an earlier run finished is kept.

    Args:
        source: A folder with its sub-folders, a JSONL list, Parquet files with paths or bytes and captions,
            or WebDataset tar files; a path or a URL such as `s3://bucket/folder`.
        out: The folder of the results, a path or a URL that all nodes can write to.
        model: The name of a model, or a folder that all nodes can read.
        caption: One caption for all images, in place of their own.
        threshold: The response above which a pixel is in a mask; None takes the model's own.
        all_phrases: Also ground phrases that name no object.
        keep_absent: Keep the masks of phrases that are probably not in the image, and of a caption that seems
            not to be English.
        batch_size: Images that are encoded together, those of one size in a batch.
        shard_size: Images per shard, about; a tar file and a row group of images in Parquet are one shard.
        coco: A file for the results as COCO JSON.
        pool: Where the work is done; by default on all cores of this machine.

    Returns:
        What was done, and what is there now.

    Raises:
        InputError: Ray is not installed or does not answer, the source holds no image, or the results
            cannot be written.
    """
    pool = pool or PoolOptions()
    import_ray()
    if batch_size < 1:
        raise InputError(f"the batch size is {batch_size}; it must be 1 or more")
    if threshold is not None and not 0 <= threshold <= 1:
        raise InputError(f"threshold is {threshold}; it must lie between 0 and 1")
    options = {"threshold": threshold, "all_phrases": all_phrases, "keep_absent": keep_absent}
    settings = CorpusSettings.of(model, caption=caption, batch_size=batch_size, **options)
    if coco is not None:
        check_writable([coco])
    start = time.perf_counter()
    # a source may take long to list: an address that does not answer is refused first
    with connected(pool.address) if pool.address else nullcontext():
        results = ResultFolder(str(out))
        images = CorpusSource(str(source), caption=caption, leave_out=str(out), shard_size=shard_size)
        results.prepare()
        results.delete("_SUCCESS")
        names: set[str] = set()
        counts = _ground(images, results, settings, pool, names)
    _remove_old(results, images, names)
    there = {name: counts[name] for name in ("images", "phrases", "errors")}
    manifest = {**there, "shards": len(names), "settings": asdict(settings), "ppmn": __version__}
    results.finish(None if images.unread else manifest)
    if coco is not None:
        write_coco(results, coco)
    seconds = time.perf_counter() - start
    return CorpusSummary(counts["grounded"], counts["failed"], **there, seconds=seconds)


def _ground(
    images: CorpusSource,
    results: ResultFolder,
    settings: CorpusSettings,
    pool: PoolOptions,
    names: set[str],
) -> Counter[str]:
    """Write the shards of all chunks, whose names are added to `names`; returns the counts."""
    with connected(pool.address) as ray:
        arguments = {"settings": settings, "location": results.location}
        arguments |= {"device": pool.device, "threads": pool.threads}
        rows = map(asdict, _named(images.chunks(), names))
        return _follow(run_pool(ray, ChunkWorker, arguments, rows, pool), images.images)


def _remove_old(results: ResultFolder, images: CorpusSource, names: set[str]) -> None:
    """Remove the shards of images that the source no longer holds, if all of its folders could be read."""
    if images.unread:
        text = "folders of %s that could not be read: %d; all shards are kept, and there is no _SUCCESS"
        _log.warning(text, images.location, len(images.unread))
    elif old := results.keep_only(names):
        _log.info("%d shards of images that are no longer in %s were removed", old, images.location)


def _named(chunks: Iterable[Chunk], names: set[str]) -> Iterator[Chunk]:
    """The chunks; their names are added to `names`."""
    for chunk in chunks:
        names.add(chunk.name)
        yield chunk


def _follow(done: Iterable[Mapping[str, Any]], total: int | None) -> Counter[str]:
    """Show progress, log failures as they happen, and add up the counts."""
    counts: Counter[str] = Counter()
    start, logged = time.perf_counter(), 0
    with tqdm(total=total, unit="image", disable=None) as bar:
        for row in done:
            if row["fault"]:
                raise InputError(row["fault"])
            counts.update({name: int(row[name]) for name in ("images", "phrases", "errors")})
            if row["computed"]:
                new = {"grounded": row["images"], "failed": row["errors"], "rows": row["phrases"]}
                counts.update({name: int(value) for name, value in new.items()})
            bar.update(int(row["images"]) + int(row["errors"]))
            rate = counts["rows"] / (time.perf_counter() - start)
            bar.set_postfix_str(f"{rate:.1f} rows/s, {counts['errors']} failed")
            for sentence in filter(None, row["failures"].split("\n")):
                logged += 1
                if logged <= _LOGGED_FAILURES:
                    _log.warning("%s", sentence)
    if counts["failed"] > min(logged, _LOGGED_FAILURES):
        _log.warning("%d images failed; errors.parquet lists them all", counts["failed"])
    if earlier := counts["images"] + counts["errors"] - counts["grounded"] - counts["failed"]:
        _log.info("%d images were finished before", earlier)
    return counts
