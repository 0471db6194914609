"""The text encoder: a caption and its phrases -> one vector a query."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from ppmn.config import QueryUnit
from ppmn.errors import InputError
from ppmn.types import Span

PACKAGE = "package:"


@dataclass(frozen=True)
class Tokens:
    """A caption's word pieces, and which of them belong to which phrase."""

    ids: tuple[int, ...]  # without [CLS] and [SEP]
    pieces: tuple[tuple[int, ...], ...]  # positions in `ids`, phrase by phrase


@dataclass(frozen=True)
class Queries:
    """The rows that are matched with pixels; a phrase owns one row, or one a word piece."""

    vectors: Tensor  # (M, C_r)
    counts: tuple[int, ...]  # rows of each photo
    sizes: tuple[int, ...]  # rows of each phrase

    def phrase_maps(self, M: Tensor) -> Tensor:
        """Response maps of phrases: the mean of their rows' maps, (M, H, W) -> (P, H, W)."""
        if all(size == 1 for size in self.sizes):
            return M
        return torch.stack([rows.mean(0) for rows in M.split(list(self.sizes))])


class TextEncoder(nn.Module):
    """Any BERT with a fast tokenizer; captions of any length, in overlapping windows where they are long."""

    def __init__(self, bert: Any, tokenizer: Any, query: QueryUnit) -> None:
        super().__init__()
        if not tokenizer.is_fast:
            raise InputError(
                f"{type(tokenizer).__name__} has no character offsets; a fast tokenizer is needed"
            )
        self.bert, self.tokenizer, self.query = bert, tokenizer, query
        self.channels: int = bert.config.hidden_size
        self.window: int = bert.config.max_position_embeddings - 2  # [CLS] and [SEP] take two

    @classmethod
    def from_source(cls, source: str, query: QueryUnit, weights: bool = True) -> "TextEncoder":
        """From a folder, a hub name, or `package:NAME`; without `weights` only its shape is built."""
        where = resolve(source)
        verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
            if weights:
                bert, report = AutoModel.from_pretrained(
                    where, add_pooling_layer=False, output_loading_info=True, trust_remote_code=False
                )
                check_complete(report, source)
            else:
                shape = AutoConfig.from_pretrained(where, trust_remote_code=False)
                bert = AutoModel.from_config(shape, add_pooling_layer=False, trust_remote_code=False)
        except InputError:
            raise
        except Exception as error:  # of a folder's many files, each has errors of its own
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"no text encoder could be loaded from {source} ({reason})") from error
        finally:
            transformers_logging.set_verbosity(verbosity)
            if bars:
                transformers_logging.enable_progress_bar()
        return cls(bert, tokenizer, query)

    def tokenize(self, caption: str, spans: Sequence[Span]) -> Tokens:
        """Word pieces of a caption, aligned to phrases by character offsets."""
        encoded = self.tokenizer(
            caption, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )
        offsets = encoded["offset_mapping"]
        pieces = []
        for start, end in spans:
            inside = tuple(i for i, (s, e) in enumerate(offsets) if s < end and e > start)
            if not inside:
                raise InputError(
                    f"the text encoder has no word piece for {caption[start:end]!r} at {start}:{end}"
                )
            pieces.append(inside)
        return Tokens(tuple(encoded["input_ids"]), tuple(pieces))

    def forward(self, captions: Sequence[Tokens]) -> Queries:
        """Encode captions and take the vectors of their phrases."""
        return self.queries(captions, self.encode([c.ids for c in captions]))

    def queries(self, captions: Sequence[Tokens], words: Sequence[Tensor]) -> Queries:
        """The rows that phrases own, from one vector a word piece."""
        rows, counts, sizes = [], [], []
        for caption, vectors in zip(captions, words, strict=True):
            for pieces in caption.pieces:
                phrase = vectors[list(pieces)]  # (words, C_r)
                rows.append(phrase if self.query == "word" else phrase.mean(0, keepdim=True))
                sizes.append(len(rows[-1]))
            counts.append(sum(sizes[len(sizes) - len(caption.pieces) :]) if caption.pieces else 0)
        vectors = torch.cat(rows) if rows else self.empty()
        return Queries(vectors, tuple(counts), tuple(sizes))

    def encode(self, captions: Sequence[Sequence[int]]) -> list[Tensor]:
        """One vector a word piece; each from the window in which it stands most central."""
        windows: list[Sequence[int]] = []
        places: list[list[tuple[int, int]]] = []  # of each piece: window, position in it
        for ids in captions:
            starts = window_starts(len(ids), self.window)
            centres = [start + min(self.window, len(ids)) / 2 for start in starts]
            best = [min(range(len(starts)), key=lambda w, i=i: abs(centres[w] - i)) for i in range(len(ids))]  # type: ignore[misc]
            places.append([(len(windows) + w, 1 + i - starts[w]) for i, w in enumerate(best)])
            windows += [ids[start : start + self.window] for start in starts]
        hidden = self.run(windows)  # (W, T, C_r)
        return [
            hidden[[w for w, _ in place], [p for _, p in place]] if place else self.empty()
            for place in places
        ]

    def run(self, windows: Sequence[Sequence[int]]) -> Tensor:
        """Last hidden states of [CLS] ids [SEP], padded to the longest window."""
        cls, sep, pad = (getattr(self.tokenizer, f"{name}_token_id") for name in ("cls", "sep", "pad"))
        longest = max(len(ids) for ids in windows) + 2
        table = [[cls, *ids, sep, *[pad] * (longest - 2 - len(ids))] for ids in windows]
        device = self.bert.device
        input_ids = torch.tensor(table, device=device)
        length = torch.tensor([len(ids) + 2 for ids in windows], device=device)
        attention_mask = (torch.arange(longest, device=device) < length[:, None]).long()
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    def empty(self) -> Tensor:
        return next(self.bert.parameters()).new_zeros(0, self.channels)


def check_complete(report: dict[str, Any], source: str) -> None:
    """Refuse tensors that a source does not hold and that would stay at random."""
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if absent:
        raise InputError(f"{source} lacks {len(absent)} tensors of its text encoder, {absent[0]} among them")


def window_starts(length: int, window: int) -> list[int]:
    """Windows that overlap by half and together cover all pieces."""
    if length <= window:
        return [0]
    step = window // 2
    starts = list(range(0, length - window, step))
    return [*starts, length - window]


def resolve(source: str) -> str:
    """The folder or hub name behind a source; of a package the folder `model`, found without importing it."""
    if not source.startswith(PACKAGE):
        return str(Path(source).expanduser()) if Path(source).expanduser().is_dir() else source
    name = source.removeprefix(PACKAGE)
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        raise InputError(f"the text encoder package {name} is not installed: pip install {name}")
    return str(folder)
