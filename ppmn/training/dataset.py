"""From samples to batches: which photos go together, and what the network and the losses see of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as fn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ppmn.config import Augment, TrainConfig
from ppmn.data.panoptic import IGNORE_ID
from ppmn.data.targets import targets_area, targets_ppmn2022
from ppmn.errors import InputError
from ppmn.model.network import PPMN
from ppmn.model.preprocess import Preprocess
from ppmn.model.pyramid import Features
from ppmn.model.text import Queries, Tokens
from ppmn.synthetic.narrator import rng_for
from ppmn.training.feature_cache import Cache, Caches, content_key, fingerprint
from ppmn.training.sources import Sample, Source, held_out

PIECES = 80  # word pieces of a narrative, about
SMALL = 5 / 6  # of a photo's sides, in the small epochs


@dataclass(frozen=True)
class Kept:
    """Names of photo and caption in the caches, and what is there under them."""

    photo: str = ""
    features: dict[str, Tensor] | None = None
    caption: str = ""
    words: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class Item:
    """One sample, ready for the network: photo and caption, or what a cache kept of them."""

    name: str
    photo: Tensor | None  # uint8 (3, h, w)
    tokens: Tokens
    kept: Kept
    targets: Tensor  # bool (P, h', w'), one a phrase
    known: Tensor  # bool (h', w')

    def rows(self, query: str) -> list[int]:
        """How many queries each phrase owns."""
        return [len(pieces) if query == "word" else 1 for pieces in self.tokens.pieces]


@dataclass(frozen=True)
class Bad:
    """A sample that could not be read, and why."""

    reason: str


class TrainingSet(Dataset[Item | Bad]):
    """Items by (epoch, number): the same for the same seed, whoever reads them and when.

    Numbers from `len` on are a photo's second copy in an epoch, told in other words, and so on.
    """

    def __init__(self, sources: Sequence[Source], config: TrainConfig, model: PPMN, caches: Caches) -> None:
        self.sources, self.config, self.caches = sources, config, caches
        self.model = model
        self.references = [
            (s, i)
            for s, source in enumerate(sources)
            for i in range(len(source))
            if not held_out(source.image(i), config.validation_fraction)
        ]
        self.donors: list[list[int]] = [[] for _ in sources]
        for s, i in self.references:
            self.donors[s].append(i)
        if not self.references:
            raise InputError("the training split is empty: every photo is held out for validation")

    def __len__(self) -> int:
        return len(self.references)

    def __getitem__(self, place: tuple[int, int]) -> Item | Bad:
        epoch, number = place
        copy, reference = divmod(number, len(self))
        s, index = self.references[reference]
        rng = rng_for(self.config.seed, epoch, number)
        try:
            config = self.config
            sample = self.sources[s].sample(
                index,
                rng,
                config.augment,
                config.negative_phrases,
                copy,
                self.donors[s],
                config.narratives_per_image,
            )
            return self.item(sample, self.sources[s], self.preprocess(epoch))
        except (InputError, OSError) as error:
            return Bad(str(error))

    def preprocess(self, epoch: int) -> Preprocess:
        """How images are resized in an epoch."""
        if epoch >= self.config.small_epochs:
            return self.model.preprocess
        short_side, long_side = (
            round(SMALL * s) for s in (self.config.model.short_side, self.config.model.long_side)
        )
        return replace(self.model.preprocess, short_side=short_side, long_side=long_side)

    def item(self, sample: Sample, source: Source, preprocess: Preprocess) -> Item:
        encoder = self.model.image_encoder
        kept = self.kept(sample, source)
        size = preprocess.size(sample.photo.height, sample.photo.width)
        photo = preprocess(sample.photo) if kept.features is None else None
        tokens = self.model.text_encoder.tokenize(sample.caption, [(p.start, p.end) for p in sample.phrases])
        targets, known = truth(sample, size, encoder.padded_size(*size), encoder.stride, self.config)
        return Item(f"{source.name}/{sample.image.file.name}", photo, tokens, kept, targets, known)

    def kept(self, sample: Sample, source: Source) -> Kept:
        photo = caption = ""
        features = words = None
        if self.caches.image is not None:
            file = sample.image.file
            photo = content_key(sample.photo.tobytes() if sample.changed else file.read_bytes())
            features = self.caches.image.read(photo)
        if self.caches.text is not None and source.given is not None:  # a made caption never comes again
            caption = content_key(sample.caption.encode())
            words = self.caches.text.read(caption)
        return Kept(photo, features, caption, words)


def truth(
    sample: Sample, size: tuple[int, int], padded: tuple[int, int], stride: int, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """Masks of the supervised phrases at the loss's stride, and where they are known.

    The released code compares at half the stride of its maps and dilates the masks; the paper compares
    at their stride. Where padding does not count, what is beyond the photo is not known.
    """
    rows = [p.segment_ids for p in sample.phrases]
    if config.model.count_padding:
        masks = targets_ppmn2022(sample.ids, rows, size, padded)
        known = np.ones(masks.shape[1:], bool)
    else:
        step = stride / 2 if config.model.variant == "released" else stride
        beyond = [round(n * p / s) - n for n, p, s in zip(sample.ids.shape, padded, size, strict=True)]
        ids = np.pad(sample.ids, ((0, beyond[0]), (0, beyond[1])), constant_values=IGNORE_ID)
        grid = (round(padded[0] / step), round(padded[1] / step))
        masks, known = targets_area(ids, rows, grid, sample.void)
    return torch.from_numpy(masks), torch.from_numpy(known)


@dataclass(frozen=True)
class Truth:
    """What the maps of a batch are compared with, one row a query."""

    Y: Tensor  # (M, h', w')
    known: Tensor | None  # (M, h', w'); None where padding counts

    @classmethod
    def of(cls, items: Sequence[Item], config: TrainConfig) -> "Truth":
        """Each phrase's mask for each of its queries, padded to the largest photo."""
        height, width = (max(item.known.shape[axis] for item in items) for axis in (0, 1))
        Y, known = [], []
        for item in items:
            rows = torch.tensor(item.rows(config.model.query), dtype=torch.long)
            edges = (0, width - item.known.shape[1], 0, height - item.known.shape[0])
            Y.append(fn.pad(item.targets.repeat_interleave(rows, 0), edges))
            known.append(fn.pad(item.known, edges).expand(int(rows.sum()), -1, -1))
        return cls(torch.cat(Y).float(), None if config.model.count_padding else torch.cat(known).float())

    @property
    def pixels(self) -> float:
        return float(self.Y.numel() if self.known is None else self.known.sum(dtype=torch.float64))


def epoch_batches(data: TrainingSet, epoch: int, batch: int) -> list[list[int]]:
    """The epoch's batches: sources in the measure of their weights, photos of similar shape together."""
    rng = np.random.default_rng((data.config.seed, epoch, 1))
    numbers = np.concatenate([drawn(data, s, rng) for s in range(len(data.sources))])
    rng.shuffle(numbers)
    batch = min(batch, len(numbers))
    batches: list[list[int]] = []
    for first in range(0, len(numbers), 16 * batch):
        group = sorted(numbers[first : first + 16 * batch].tolist(), key=lambda n: shape(data, epoch, n))
        batches += [group[i : i + batch] for i in range(0, len(group), batch)]
    whole = [b for b in batches if len(b) == batch]
    return [whole[i] for i in rng.permutation(len(whole))]


def drawn(data: TrainingSet, s: int, rng: np.random.Generator) -> np.ndarray:
    """The numbers of a source's samples, copies as its weight says; a fraction is drawn."""
    mine = np.array([n for n, (source, _) in enumerate(data.references) if source == s], dtype=np.int64)
    times, rest = divmod(data.sources[s].weight, 1)
    extra = rng.permutation(mine)[: round(rest * len(mine))]
    copies = [mine + copy * len(data) for copy in range(int(times))]
    return np.concatenate([*copies, extra + int(times) * len(data)])


def shape(data: TrainingSet, epoch: int, number: int) -> tuple[int, int]:
    s, index = data.references[number % len(data)]
    image = data.sources[s].image(index)
    return data.model.image_encoder.padded_size(*data.preprocess(epoch).size(image.height, image.width))


def load(data: TrainingSet, epoch: int, batches: Sequence[Sequence[int]]) -> Iterator[list[Item | Bad]]:
    """Read batches in their order, ahead of the network where there are workers."""
    places = [[(epoch, number) for number in batch] for batch in batches]
    workers = data.config.workers
    yield from DataLoader(data, batch_sampler=places, collate_fn=list, num_workers=workers)


def open_caches(config: TrainConfig, folder: Path | None, model: PPMN, sources: Sequence[Source]) -> Caches:
    """Caches of the encoders that are frozen, refused where they could not be true to the run."""
    if folder is None:
        return Caches()
    encoder = model.image_encoder
    part, description = encoder.frozen_part()
    frozen = not any(p.requires_grad for p in part.parameters())
    if not frozen and config.lr_text > 0:
        raise InputError("both encoders are trained: there is nothing that --cache could keep")
    image = text = None
    if frozen:
        if config.augment != Augment() and not config.augment.fixed:
            raise InputError(f"photos are changed every epoch ({config.augment}): --cache cannot keep them")
        if config.small_epochs:
            raise InputError(f"photos grow after {config.small_epochs} epochs: --cache cannot keep them")
        if config.model.count_padding:
            raise InputError(
                "padding counts, so a photo's features depend on its batch: --cache cannot keep them"
            )
        image = Cache(folder / "image", fingerprint(part, f"{model.preprocess} {description}"))
        copies: dict[Path, int] = {}
        for source, n in ((s, n) for s in sources for n in range(len(s))):
            photo = source.image(n)
            times = math.ceil(source.weight) if config.augment.fixed and source.given is None else 1
            copies[photo.file] = times * encoder.feature_count(
                *model.preprocess.size(photo.height, photo.width)
            )
        image.require(2 * sum(copies.values()))
    if config.lr_text == 0:
        if config.text_dropout:
            raise InputError("the frozen text encoder's dropout is live: --cache needs text_dropout=false")
        text = Cache(folder / "text", fingerprint(model.text_encoder, config.model.text.source))
        given = sum(len(s) for s in sources if s.given is not None)
        text.require(2 * given * PIECES * model.text_encoder.channels)
    return Caches(image, text)


def photos_of(
    items: Sequence[Item], model: PPMN, cache: Cache | None, device: torch.device
) -> Sequence[Tensor] | Sequence[Features]:
    """The photos, or their features where a cache keeps them; what is missing there is made and kept."""
    if cache is None:
        return [item.photo.to(device) for item in items if item.photo is not None]
    features = []
    for item in items:
        kept = item.kept.features
        if kept is None and item.photo is not None:
            with torch.no_grad():
                (made,) = model.image_encoder.features([item.photo.to(device)])
            kept = cache.write(item.kept.photo, made)
        features.append({name: value.to(device).float() for name, value in (kept or {}).items()})
    return features


def captions_of(
    items: Sequence[Item], model: PPMN, cache: Cache | None, device: torch.device
) -> Sequence[Tokens] | Queries:
    """The captions, or their words where a cache keeps them."""
    tokens = [item.tokens for item in items]
    if cache is None or not all(item.kept.caption for item in items):
        return tokens
    words = []
    for item in items:
        kept = item.kept.words
        if kept is None:
            with torch.no_grad():
                (made,) = model.text_encoder.encode([item.tokens.ids])
            kept = cache.write(item.kept.caption, {"words": made})
        words.append(kept["words"].to(device).float())
    queries: Queries = model.text_encoder.queries(tokens, words)
    return queries
