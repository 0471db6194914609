"""Captions and proposals as the tensors that the second stage reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ppmn.baselines.proposals import Proposals
from ppmn.baselines.two_stage import TwoStageConfig
from ppmn.errors import InputError
from ppmn.types import Span

TEST_REGIONS = 58  # rows as released: the most that an image of the test split has
PHRASE_SLOTS = 28  # phrases of a narrative as released


@dataclass(frozen=True)
class CaptionRows:
    """The word pieces of a caption, and which rows of the network belong to which phrase."""

    ids: tuple[int, ...]  # with [CLS] and [SEP]
    rows: tuple[tuple[int, ...], ...]  # of each phrase; empty where the caption was cut before it


@dataclass(frozen=True)
class RegionBatch:
    """A batch of narratives and the regions of their images."""

    ids: Tensor  # (B, T)
    words: Tensor  # which pieces are not padding, (B, T)
    features: Tensor  # (B, P, region_size)
    boxes: Tensor  # (B, P, 4)
    regions: Tensor  # which regions are not padding, (B, P)
    N: Tensor  # rows of each phrase, (B, T, n)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The arguments of the network."""
        return self.ids, self.words, self.features, self.boxes, self.regions


def caption_rows(tokenizer: Any, caption: str, spans: Sequence[Span], config: TwoStageConfig) -> CaptionRows:
    """Split a caption into word pieces and find the rows of its phrases.

    With `words="words"` a phrase's rows are numbered by words, as in the released code, though the
    network has one row per word piece: every word that is split shifts the rows of all words after it.

    Args:
        tokenizer: A fast BERT tokenizer.
        caption: Any text; it is cut to `config.max_pieces`.
        spans: Start and end of each phrase, in characters.
        config: Of the network.
    """
    encoded = tokenizer(caption, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets, words = encoded["offset_mapping"], encoded.word_ids(0)
    last = config.max_pieces - 2  # [CLS] and [SEP] take two
    rows = []
    for start, end in spans:
        pieces = [i for i, (s, e) in enumerate(offsets) if s < end and e > start]
        if not pieces:
            raise InputError(f"the tokenizer has no word piece for {caption[start:end]!r} at {start}:{end}")
        numbers = pieces if config.words == "pieces" else sorted({words[i] for i in pieces})
        rows.append(tuple(1 + i for i in numbers if i < last))
    ids = encoded["input_ids"][:last]
    return CaptionRows((tokenizer.cls_token_id, *ids, tokenizer.sep_token_id), tuple(rows))


def collate(
    captions: Sequence[CaptionRows], proposals: Sequence[Proposals], config: TwoStageConfig
) -> RegionBatch:
    """A batch; as released (`mask_regions` false) padded to 58 regions, as at test.

    With `mask_regions` the padding is that of the longest image and changes nothing.
    """
    regions = max(map(len, proposals))
    phrases = max(len(caption.rows) for caption in captions)
    if not config.mask_regions:
        regions = _at_most(regions, TEST_REGIONS, "regions in an image")
        phrases = _at_most(phrases, PHRASE_SLOTS, "phrases in a narrative")
    ids = pad_sequence([torch.tensor(caption.ids) for caption in captions], batch_first=True)  # (B, T)
    lengths = torch.tensor([len(caption.ids) for caption in captions])
    counts = torch.tensor([len(image) for image in proposals])
    N = torch.zeros(*ids.shape, phrases)
    for b, caption in enumerate(captions):
        for n, rows in enumerate(caption.rows):
            N[b, list(rows), n] = 1
    return RegionBatch(
        ids,
        torch.arange(ids.shape[1]) < lengths[:, None],
        _padded([image.features for image in proposals], regions),
        _padded([image.boxes for image in proposals], regions),
        torch.arange(regions) < counts[:, None],
        N,
    )


def _at_most(count: int, limit: int, what: str) -> int:
    if count > limit:
        raise InputError(f"{count} {what}; the released code has room for {limit}: set mask_regions to true")
    return limit


def _padded(images: Sequence[Tensor], rows: int) -> Tensor:
    """(P_b, C) of each image -> (B, rows, C), zeros beyond."""
    batch = images[0].new_zeros(len(images), rows, images[0].shape[1])
    for b, image in enumerate(images):
        batch[b, : len(image)] = image
    return batch
