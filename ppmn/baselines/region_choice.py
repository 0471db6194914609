"""From scores to masks: which regions are right, which are chosen, and the grounder of the baseline."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppmn.baselines.proposals import Proposals
from ppmn.baselines.region_batch import caption_rows, collate
from ppmn.baselines.two_stage import TwoStage, phrase_scores
from ppmn.data.targets import Rows
from ppmn.errors import InputError
from ppmn.phrases.rules import find_phrases
from ppmn.types import SegmentIds, Span

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RegionChoice:
    """The regions of one phrase, as rows of the proposals, and the mean of their probabilities."""

    rows: tuple[int, ...]
    score: float


def region_targets(truth: SegmentIds, proposals: SegmentIds, rows: Rows, count: int) -> NDArray[np.float32]:
    """For each phrase the region with the highest IoU with each of its segments, (N, P) of 0 and 1.

    A region is right however low its IoU is; a segment that no region overlaps has none.

    Args:
        truth: Segment id of every pixel as annotated, (H, W).
        proposals: Number of the region of every pixel, from 1, (H, W).
        rows: The annotated segments of each phrase.
        count: The number of regions P.
    """
    areas = np.bincount(proposals.ravel(), minlength=count + 1)[1:]
    targets = np.zeros((len(rows), count), np.float32)
    for n, segments in enumerate(rows):
        for segment in segments:
            inside = truth == segment
            both = np.bincount(proposals[inside], minlength=count + 1)[1:]
            if both.any():
                targets[n, np.argmax(both / (areas + inside.sum() - both))] = 1
    return targets


def choose_regions(scores: NDArray[np.float32], *, plural: bool, threshold: float) -> tuple[int, ...]:
    """The highest region of a singular phrase, all regions above the threshold of a plural one.

    With targets in place of scores this is the oracle.
    """
    if plural:
        return tuple(np.flatnonzero(scores > threshold).tolist())
    return (int(scores.argmax()),) if len(scores) else ()


class TwoStageGrounder:
    """The second stage with its tokenizer: proposals and a caption -> regions of each phrase."""

    def __init__(self, model: TwoStage, tokenizer: Any) -> None:
        self.model, self.tokenizer, self.config = model.eval(), tokenizer, model.config

    @torch.no_grad()
    def ground(
        self,
        proposals: Proposals,
        caption: str,
        spans: Sequence[Span],
        *,
        truly_plural: Sequence[bool] | None = None,
    ) -> list[RegionChoice | None]:
        """Choose regions for each span.

        Args:
            proposals: The regions of the image.
            caption: The whole narrative.
            spans: Start and end of each phrase, in characters.
            truly_plural: Whether each phrase has several annotated segments; needed for the rule "truth"
                and not read by the rule "text".

        Returns:
            A choice per span, without regions where none is above the threshold; None for a phrase that
            the network does not read because the caption was cut before it.
        """
        plural = self._plural(caption, spans, truly_plural)
        tokens = caption_rows(self.tokenizer, caption, spans, self.config)
        batch = collate([tokens], [proposals], self.config)
        device = self.model.pooler.dense.weight.device
        A = self.model(*(tensor.to(device) for tensor in batch.inputs)).cpu()  # (1, T, P)
        S = phrase_scores(A, batch.N)[0, : len(spans)]  # (n, P)
        unread = sum(not rows for rows in tokens.rows)
        if unread:
            _log.warning(f"{unread} phrases lie beyond the {self.config.max_pieces} word pieces of a caption")
        return [
            self._choice(scores, several) if rows else None
            for scores, several, rows in zip(S, plural, tokens.rows, strict=True)
        ]

    def _plural(
        self, caption: str, spans: Sequence[Span], truly_plural: Sequence[bool] | None
    ) -> Sequence[bool]:
        if self.config.plural_rule == "text":
            return [phrase.plural for phrase in find_phrases(caption, spans=spans)]
        if truly_plural is None or len(truly_plural) != len(spans):
            raise InputError("plural_rule truth needs to be given which phrases have several segments")
        return truly_plural

    def _choice(self, S: Tensor, plural: bool) -> RegionChoice:
        # by scores: in single precision the sigmoid of any score above 17 is 1, and the best is lost
        threshold = torch.logit(torch.tensor(self.config.plural_threshold)).item()
        rows = choose_regions(S.numpy(), plural=plural, threshold=threshold)
        return RegionChoice(rows, S[list(rows)].sigmoid().mean().item() if rows else 0.0)
