"""The text encoder: a caption and its phrases -> one vector per query."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, AutoTokenizer
from transformers.initialization import no_init_weights
from transformers.utils import logging as transformers_logging

from ppmn.config import QueryUnit
from ppmn.errors import InputError
from ppmn.model.locate import resolve_source
from ppmn.model.windows import Tokens, align_pieces, central_places, similar_lengths, window_starts
from ppmn.types import Span


@dataclass(frozen=True)
class Queries:
    """The vectors that are matched with pixels: one per phrase, or one per word piece of each phrase."""

    vectors: Tensor  # R, (M, C_r)
    counts: tuple[int, ...]  # rows of each image
    sizes: tuple[int, ...]  # rows of each phrase


class TextEncoder(nn.Module):
    """Any encoder like BERT with a fast tokenizer; long captions are encoded in overlapping windows."""

    def __init__(self, bert: Any, tokenizer: Any, query: QueryUnit) -> None:
        super().__init__()
        if not tokenizer.is_fast:
            raise InputError(f"{type(tokenizer).__name__} has no character offsets; use a fast tokenizer")
        self.bert, self.tokenizer, self.query = bert, tokenizer, query
        self.channels: int = bert.config.hidden_size
        self.window: int = longest_input(bert) - 2  # [CLS] and [SEP] take two

    @classmethod
    def from_source(cls, source: str, query: QueryUnit, weights: bool = True) -> "TextEncoder":
        """From a folder, a hub name or `package:NAME`; without `weights` its tensors are not initialised."""
        where = resolve_source(source)
        verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
            shape = AutoConfig.from_pretrained(where, trust_remote_code=False)
            options = {"trust_remote_code": False, **_without_pooler(shape)}
            if weights:
                bert, report = AutoModel.from_pretrained(where, output_loading_info=True, **options)
                _check_complete(report, source)
            else:
                with no_init_weights():
                    bert = AutoModel.from_config(shape, **options)
        except InputError:
            raise
        except Exception as error:  # each of a folder's files has errors of its own
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"no text encoder could be loaded from {source} ({reason})") from error
        finally:
            transformers_logging.set_verbosity(verbosity)
            if bars:
                transformers_logging.enable_progress_bar()
        return cls(bert, tokenizer, query)

    def tokenize(self, caption: str, spans: Sequence[Span]) -> Tokens:
        """Split a caption into word pieces, and align them to phrases by character offsets."""
        encoded = self.tokenizer(
            caption, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )
        pieces = align_pieces(caption, spans, encoded["offset_mapping"])
        return Tokens(tuple(encoded["input_ids"]), pieces)

    def forward(self, captions: Sequence[Tokens]) -> Queries:
        """Encode captions and select the vectors of their phrases."""
        return self.queries(captions, self.encode([c.ids for c in captions]))

    def queries(
        self, captions: Sequence[Tokens], words: Sequence[Tensor], per_image: Sequence[int] | None = None
    ) -> Queries:
        """The queries of phrases, from one vector per word piece; `per_image` captions are of one image."""
        rows: list[Tensor] = []
        counts: list[int] = []
        sizes: list[int] = []
        remaining = iter(zip(captions, words, strict=True))
        for number in per_image or [1] * len(captions):
            before = sum(sizes)
            for caption, vectors in islice(remaining, number):
                for pieces in caption.pieces:
                    phrase = vectors[list(pieces)]  # (pieces, C_r)
                    rows.append(phrase if self.query == "word" else phrase.mean(0, keepdim=True))
                    sizes.append(len(rows[-1]))
            counts.append(sum(sizes) - before)
        R = torch.cat(rows) if rows else self.empty()
        return Queries(R, tuple(counts), tuple(sizes))

    def encode(self, captions: Sequence[Sequence[int]]) -> list[Tensor]:
        """One vector per word piece, each from the window in which it is most central."""
        windows: list[Sequence[int]] = []
        places: list[list[tuple[int, int]]] = []  # of each caption's pieces: window, position in it
        for ids in captions:
            starts = window_starts(len(ids), self.window)
            best, positions = central_places(len(ids), starts, self.window)
            places.append([(len(windows) + w, n) for w, n in zip(best, positions, strict=True)])
            windows += [ids[start : start + self.window] for start in starts]
        hidden = self.run(windows)
        return [self._select(hidden, place) for place in places]

    def _select(self, hidden: Sequence[Tensor], places: Sequence[tuple[int, int]]) -> Tensor:
        """The vectors at places, each of a window and a position, (pieces, C_r)."""
        if not places:
            return self.empty()
        parts = []
        for number in sorted({window for window, _ in places}):  # pieces are in the order of their windows
            parts.append(hidden[number][[n for window, n in places if window == number]])
        return torch.cat(parts)

    def run(self, windows: Sequence[Sequence[int]]) -> list[Tensor]:
        """The last hidden states of [CLS] ids [SEP] of each window; those of similar length go together."""
        hidden: dict[int, Tensor] = {}
        for group in similar_lengths([len(ids) + 2 for ids in windows]):
            rows = self.run_padded([windows[number] for number in group])  # (windows, pieces, C_r)
            hidden |= zip(group, rows, strict=True)
        return [hidden[number] for number in range(len(windows))]

    def run_padded(self, windows: Sequence[Sequence[int]]) -> Tensor:
        """The last hidden states, padded to the longest window."""
        cls, sep, pad = (getattr(self.tokenizer, f"{name}_token_id") for name in ("cls", "sep", "pad"))
        longest = max(len(ids) for ids in windows) + 2
        table = [[cls, *ids, sep, *[pad] * (longest - 2 - len(ids))] for ids in windows]
        device = self.bert.device
        input_ids = torch.tensor(table, device=device)
        length = torch.tensor([len(ids) + 2 for ids in windows], device=device)
        attention_mask = (torch.arange(longest, device=device) < length[:, None]).long()
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    def empty(self) -> Tensor:
        """No vectors, (0, C_r)."""
        return next(self.bert.parameters()).new_zeros(0, self.channels)


def longest_input(bert: Any) -> int:
    """How many tokens a text encoder reads at once; RoBERTa and MPNet count positions from after padding."""
    table = getattr(getattr(bert, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    positions: int = bert.config.max_position_embeddings
    return positions if padding is None else positions - padding - 1


def _without_pooler(shape: Any) -> dict[str, bool]:
    """The option that leaves a pooler out, for families that have one."""
    kind = MODEL_MAPPING.get(type(shape), None)
    kind = kind[0] if isinstance(kind, tuple) else kind
    has_one = kind is not None and "add_pooling_layer" in inspect.signature(kind).parameters
    return {"add_pooling_layer": False} if has_one else {}


def _check_complete(report: dict[str, Any], source: str) -> None:
    """Refuse a source that lacks tensors, which would stay random."""
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise InputError(
            f"{source} lacks {len(missing)} tensors of its text encoder, {missing[0]} among them"
        )
