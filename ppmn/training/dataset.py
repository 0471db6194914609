"""From samples to batches: which images go together, and what the network and the losses get of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as fn
from numpy.typing import NDArray
from PIL import ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ppmn.config import TrainConfig
from ppmn.data.panoptic import IGNORE_ID
from ppmn.data.partition import held_out
from ppmn.data.targets import Rows, targets_area, targets_ppmn2022
from ppmn.errors import InputError
from ppmn.model.method import BatchTargets, Method, SegmentTargets
from ppmn.model.preprocess import Preprocess
from ppmn.model.text import Tokens
from ppmn.synthetic.narrator import rng_for
from ppmn.training.feature_cache import FeatureCaches, content_key
from ppmn.training.interrupt import ignore_interrupt
from ppmn.training.sources import Source, TrainingSample
from ppmn.types import Mask, Size

SMALL_SCALE = 5 / 6  # of an image's sides in the first `small_epochs`


@dataclass(frozen=True)
class CacheEntry:
    """Keys of image and caption in the caches, and what the caches hold under them."""

    image_key: str = ""
    features: dict[str, Tensor] | None = None
    caption_key: str = ""
    words: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class Item:
    """One sample as the network takes it: image and caption, or their features from a cache."""

    name: str
    image: Tensor | None  # uint8 (3, h, w); None: its features are in the cache
    captions: tuple[Tokens, ...]
    cached: CacheEntry
    targets: Tensor  # bool (P, h', w'), one per phrase
    valid: Tensor  # bool (h', w')
    absent: Tensor  # bool (P,), what the phrase names is not in the image
    single: Tensor  # bool (P,), the phrase means one thing
    thing: Tensor  # bool (P,), the phrase means things, not stuff
    segments: SegmentTargets | None = None  # where the method uses all segments
    mirrored: bool = False  # the features of `image` are to be mirrored

    def rows(self, query: str) -> list[int]:
        """How many queries each phrase has."""
        return [len(p) if query == "word" else 1 for caption in self.captions for p in caption.pieces]


@dataclass(frozen=True)
class UnreadableSample:
    """A sample that could not be read, and why."""

    reason: str


class TrainingSet(Dataset[Item | UnreadableSample]):
    """Items by (epoch, number): the same for the same seed, in whatever process and order they are read.

    Numbers from `len` on are further copies of an image in the same epoch, with other narratives.
    """

    def __init__(
        self, sources: Sequence[Source], config: TrainConfig, model: Method, caches: FeatureCaches
    ) -> None:
        self.sources, self.config, self.caches = sources, config, caches
        self.model = model
        self.references = [
            (s, i)
            for s, source in enumerate(sources)
            for i in range(len(source))
            if not held_out(source.annotation(i), config.validation_fraction)
            and model.trains_on(source.annotation(i).file.stem)
        ]
        self.donors: list[list[int]] = [[] for _ in sources]
        for s, i in self.references:
            self.donors[s].append(i)
        if not self.references:
            raise InputError("the training split is empty: every image is held out for validation")

    def __len__(self) -> int:
        return len(self.references)

    def __getitem__(self, place: tuple[int, int]) -> Item | UnreadableSample:
        epoch, number = place
        copy, reference = divmod(number, len(self))
        s, index = self.references[reference]
        rng = rng_for(self.config.seed, epoch, number)
        mirrored = self.config.augment.mirror and rng.random() < 0.5
        try:
            sample = self.sources[s].sample(
                index,
                rng,
                flip=mirrored,
                augment=replace(self.config.augment, mirror=False),
                negative_phrases=self.config.negative_phrases,
                narratives_per_image=self.config.narratives_per_image,
                copy=copy,
                donors=self.donors[s],
            )
            return self._item(sample, self.sources[s], self.preprocess(epoch), mirrored)
        except (InputError, OSError) as error:
            return UnreadableSample(str(error))

    def preprocess(self, epoch: int) -> Preprocess:
        """How images are resized in an epoch."""
        full_size = self.model.preprocess
        if epoch >= self.config.small_epochs:
            return full_size
        config = self.config.model
        short_side, long_side = (round(SMALL_SCALE * side) for side in (config.short_side, config.long_side))
        return replace(full_size, short_side=short_side, long_side=long_side)

    def padded_size(self, epoch: int, number: int) -> Size:
        """The size of a sample's image as the encoder gets it, before augmentation."""
        s, index = self.references[number % len(self)]
        image = self.sources[s].annotation(index)
        return self.model.image_encoder.padded_size(*self.preprocess(epoch).size(image.height, image.width))

    def _item(self, sample: TrainingSample, source: Source, preprocess: Preprocess, mirrored: bool) -> Item:
        encoder = self.model.image_encoder
        cached = self._cached(sample, source)
        size = preprocess.size(sample.image.height, sample.image.width)
        mirrors_features = mirrored and self.caches.image is not None
        image = None
        if cached.features is None:
            image = preprocess(ImageOps.mirror(sample.image) if mirrors_features else sample.image)
        captions = tuple(
            self.model.tokenize(c.caption, [(p.start, p.end) for p in c.phrases]) for c in sample.captions
        )
        padded, step = encoder.padded_size(*size), encoder.stride / self.model.target_scale
        targets, valid = sample_targets(sample, size, padded, step, self.config)
        segments = None
        if self.model.uses_segments:
            segments = segment_targets(sample, source, size, padded, step)
        flags = {
            "absent": [p.absent for p in sample.phrases],
            "single": [sample.is_single(p) for p in sample.phrases],
            "thing": [p.isthing for p in sample.phrases],
        }
        return Item(
            f"{source.name}/{sample.annotation.file.name}",
            image,
            captions,
            cached,
            targets,
            valid,
            **{name: torch.tensor(values, dtype=torch.bool) for name, values in flags.items()},
            segments=segments,
            mirrored=mirrors_features,
        )

    def _cached(self, sample: TrainingSample, source: Source) -> CacheEntry:
        image_key = caption_key = ""
        features = words = None
        if self.caches.image is not None:
            file = sample.annotation.file
            image_key = content_key(sample.image.tobytes() if sample.augmented else file.read_bytes())
            features = self.caches.image.read(image_key)
        if self.caches.text is not None and source.narratives is not None:  # generated captions differ
            caption_key = content_key(sample.captions[0].caption.encode())
            words = self.caches.text.read(caption_key)
        return CacheEntry(image_key, features, caption_key, words)


def sample_targets(
    sample: TrainingSample, size: Size, padded: Size, step: float, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """The mask of each phrase at the stride `step` of the loss, and which pixels count.

    The released code compares at half the stride of its maps and dilates the masks; the paper compares
    at their stride. Where padding does not count, pixels beyond the image are not valid.
    """
    rows = [p.segment_ids for p in sample.phrases]
    if config.model.count_padding:
        masks = targets_ppmn2022(sample.ids, rows, size, padded)
        valid = np.ones(masks.shape[1:], bool)
    else:
        masks, valid = _padded_targets(sample, rows, size, padded, step)
    return torch.from_numpy(masks), torch.from_numpy(valid)


def segment_targets(
    sample: TrainingSample, source: Source, size: Size, padded: Size, step: float
) -> SegmentTargets:
    """All annotated segments of a sample at a stride; those that have no pixel left there are left out."""
    stuff = {c.id for c in source.categories.values() if not c.isthing}
    segments = sample.annotation.segments
    found, valid = _padded_targets(sample, [(s.id,) for s in segments], size, padded, step)
    kept = [n for n in range(len(segments)) if found[n].any()]
    known = [segments[n] for n in kept]
    members = [[s.id in p.segment_ids for s in known] for p in sample.phrases]
    return SegmentTargets(
        torch.from_numpy(found[kept]),
        torch.tensor([s.category_id not in stuff and not s.iscrowd for s in known], dtype=torch.bool),
        torch.tensor([s.category_id not in stuff and s.iscrowd for s in known], dtype=torch.bool),
        torch.tensor(members, dtype=torch.bool).view(len(sample.phrases), len(known)),
        torch.from_numpy(valid),
        source.complete,
        bool(stuff),
    )


def _padded_targets(
    sample: TrainingSample, rows: Rows, size: Size, padded: Size, step: float
) -> tuple[Mask, Mask]:
    """Masks of rows of segments at a stride, and valid pixels; beyond the image nothing is valid."""
    beyond = [round(n * p / s) - n for n, p, s in zip(sample.ids.shape, padded, size, strict=True)]
    ids = np.pad(sample.ids, ((0, beyond[0]), (0, beyond[1])), constant_values=IGNORE_ID)
    map_size = (round(padded[0] / step), round(padded[1] / step))
    return targets_area(ids, rows, map_size, sample.ignore_ids)


def batch_targets(items: Sequence[Item], config: TrainConfig) -> BatchTargets:
    """Each phrase's mask for each of its queries, padded to the largest image."""
    height, width = (max(item.valid.shape[axis] for item in items) for axis in (0, 1))
    Y, valid, absent, single, thing = [], [], [], [], []
    for item in items:
        rows = torch.tensor(item.rows(config.model.query), dtype=torch.long)
        padding = (0, width - item.valid.shape[1], 0, height - item.valid.shape[0])
        Y.append(fn.pad(item.targets.repeat_interleave(rows, 0), padding))
        valid.append(fn.pad(item.valid, padding).expand(int(rows.sum()), -1, -1))
        absent.append(item.absent.repeat_interleave(rows))
        single.append(item.single.repeat_interleave(rows))
        thing.append(item.thing.repeat_interleave(rows))
    valid_rows = None if config.model.count_padding else torch.cat(valid).float()
    return BatchTargets(
        torch.cat(Y).float(), valid_rows, torch.cat(absent), torch.cat(single), torch.cat(thing)
    )


def epoch_batches(data: TrainingSet, epoch: int, batch_size: int) -> list[list[int]]:
    """The batches of an epoch: sources as often as their weights say, images of similar shape together."""
    rng = np.random.default_rng((data.config.seed, epoch, 1))
    numbers = np.concatenate([_source_numbers(data, s, rng) for s in range(len(data.sources))])
    if not len(numbers):
        weights = ", ".join(f"{source.name} {source.weight:g}" for source in data.sources)
        raise InputError(f"the weights leave no image for an epoch: {weights}")
    rng.shuffle(numbers)
    batch_size = min(batch_size, len(numbers))
    batches: list[list[int]] = []
    for first in range(0, len(numbers), 16 * batch_size):
        group = numbers[first : first + 16 * batch_size].tolist()
        group.sort(key=lambda number: data.padded_size(epoch, number))
        batches += [group[i : i + batch_size] for i in range(0, len(group), batch_size)]
    whole = [batch for batch in batches if len(batch) == batch_size]
    return [whole[i] for i in rng.permutation(len(whole))]


def _source_numbers(data: TrainingSet, s: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The numbers of a source's samples, copied as its weight says; of a fraction a random part."""
    mine = np.array([n for n, (source, _) in enumerate(data.references) if source == s], dtype=np.int64)
    times, rest = divmod(data.sources[s].weight, 1)
    extra = rng.permutation(mine)[: round(rest * len(mine))]
    copies = [mine + copy * len(data) for copy in range(int(times))]
    return np.concatenate([*copies, extra + int(times) * len(data)])


def read_batches(
    data: TrainingSet, epoch: int, batches: Sequence[Sequence[int]]
) -> Iterator[list[Item | UnreadableSample]]:
    """Read batches in order, ahead of the network if there are workers."""
    places = [[(epoch, number) for number in batch] for batch in batches]
    workers = data.config.workers
    yield from DataLoader(
        data, batch_sampler=places, collate_fn=list, num_workers=workers, worker_init_fn=ignore_interrupt
    )
