"""The small two-stage system as a method: regions are proposed first, then phrases are matched with them.

Stage one is trained by itself (`stage` "one"); stage two on its regions, which stay as they are.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ppmn.baselines.bert_layers import LayerShape
from ppmn.baselines.proposal_head import ProposalHead
from ppmn.baselines.query_losses import proposal_losses
from ppmn.baselines.region_choice import choose_regions
from ppmn.baselines.region_encoder import RegionEncoder
from ppmn.baselines.region_matcher import RegionMatcher
from ppmn.baselines.region_vectors import BOX_NUMBERS, Regions, best_regions, matched_regions
from ppmn.baselines.two_stage import matching_loss
from ppmn.config import MethodConfig, PointingConfig
from ppmn.errors import InputError
from ppmn.model.method import Method, MethodLoss, TrainingBatch
from ppmn.model.network import Maps
from ppmn.model.pyramid import ImageEncoder, Pyramid
from ppmn.model.text import Queries, TextEncoder, Tokens
from ppmn.phrases.rules import find_phrases
from ppmn.types import Span

_ALMOST = 1e-6  # from 0 and 1: probabilities whose logit is taken


@dataclass(frozen=True, kw_only=True)
class TwoStageSmallConfig(MethodConfig):
    """Both stages on PPMN's encoders."""

    method = "two-stage-small"
    stage: Literal["one", "two"] = "one"  # which is trained; a model of stage one only proposes
    fold: Literal["all", "first", "second"] = "all"  # half of the images, by name, that are trained on
    instances: int = 40  # queries for single things
    regions: int = 24  # queries for stuff, and for things of unknown number
    query_layers: int = 3
    query_ffn: int = 512
    pointing: PointingConfig | None = None  # not None: "the object here" at points on a grid, no queries
    min_score: float = 0.5  # of a proposal
    crossed: str = ""  # what made the regions that stage two is trained on, where this stage one did not
    true_segments: bool = False  # stage two is trained on the annotated segments in place of proposals
    width: int = 256  # of stage two
    heads: int = 8
    ffn: int = 1024
    cross_layers: int = 4
    dropout: float = 0.1
    plural_rule: Literal["text", "all"] = "text"  # "all": every phrase takes what is above plural_threshold
    plural_threshold: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("min_score", "plural_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise InputError(f"width is {self.width}; it must be a multiple of heads = {self.heads}")
        if min(self.instances, self.regions, self.query_layers) < 1:
            raise InputError("stage one needs at least one query of each group and one layer")


@dataclass(frozen=True)
class PluralTokens(Tokens):
    """Word pieces, and whether each phrase means several."""

    plural: tuple[bool, ...] = ()


class TwoStageSmall(Method):
    """PPMN's encoders and neck, proposals, and the matching of phrases with regions."""

    config_type = TwoStageSmallConfig
    config: TwoStageSmallConfig
    uses_segments = True

    def __init__(
        self, image_encoder: ImageEncoder, text_encoder: TextEncoder, config: TwoStageSmallConfig
    ) -> None:
        super().__init__(image_encoder, text_encoder, config)
        channels = (image_encoder.channels, image_encoder.token_channels, text_encoder.channels)
        self.head = ProposalHead(
            channels,
            queries=(config.instances, config.regions),
            layers=config.query_layers,
            ffn=config.query_ffn,
            pointing=config.pointing,
        )
        if config.stage == "two":
            shape = LayerShape(config.width, config.heads, config.ffn, config.dropout)
            numbers = channels[0] + channels[1] + 1 + BOX_NUMBERS
            self.matcher = RegionMatcher(numbers, channels[2], shape, config.cross_layers)

    @property
    def feature_encoder(self) -> Any:
        """In stage two the regions of an image are what does not change."""
        return RegionEncoder(self) if self.reads_regions else self.image_encoder

    @property
    def reads_regions(self) -> bool:
        """Whether training reads regions in place of images."""
        return self.config.stage == "two" and not self.config.true_segments

    def prepare(self, *, initialised: bool) -> None:
        """In stage two all that proposes stays as it is."""
        if self.config.stage == "two":
            if not initialised:
                raise InputError("stage two is trained on the regions of stage one: give --init its model")
            self.get_submodule("image_encoder").requires_grad_(False)
            self.head.requires_grad_(False)
        elif self.head.pointing is not None:
            raise InputError("objects at points are proposed by a PPMN that points: train stage two on it")

    def trains_on(self, name: str) -> bool:
        """Stage one may be trained on half of the images, to propose for the other half."""
        return self.config.fold in ("all", fold_of(name))

    def tokenize(self, caption: str, spans: Sequence[Span]) -> PluralTokens:
        """Word pieces, and which phrases are plural by their words."""
        tokens = self.text_encoder.tokenize(caption, spans)
        plural = tuple(phrase.plural for phrase in find_phrases(caption, spans=spans)) if spans else ()
        return PluralTokens(tokens.ids, tokens.pieces, plural)

    def encode(self, pyramid: Pyramid) -> Regions:
        """The partition of each image and the vectors of its regions."""
        return self.head.regions(pyramid, self.head.neck(pyramid), self.config.min_score)

    def ground(
        self,
        encoded: Regions,
        captions: Sequence[Tokens],
        *,
        per_image: Sequence[int] | None = None,
        words: Sequence[Tensor] | None = None,
    ) -> tuple[Maps, Queries]:
        """The union of the regions that are chosen for each phrase, as logits."""
        per_image = per_image or [1] * len(captions)
        scores = self.match(encoded, captions, per_image=per_image, words=words)
        maps, counts, place = [], [0] * len(per_image), 0
        for image, number in enumerate(per_image):
            for caption, S in zip(
                captions[place : place + number], scores[place : place + number], strict=True
            ):
                maps += [self._union(encoded, image, rows) for rows in self.chosen(caption, S)]
                counts[image] += len(caption.pieces)
            place += number
        like = encoded.images[0].vectors
        H = torch.stack(maps) if maps else like.new_zeros(0, *encoded.size)
        vectors = like.new_zeros(len(H), self.text_encoder.channels)  # there is no vector in a common space
        H = torch.logit(H.clamp(_ALMOST, 1 - _ALMOST))
        return Maps([H], []), Queries(vectors, tuple(counts), (1,) * len(H))

    def match(
        self,
        encoded: Regions,
        captions: Sequence[Tokens],
        *,
        per_image: Sequence[int],
        words: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """The scores (P, R) of each caption's phrases and its image's regions, as logits."""
        if self.config.stage == "one":
            raise InputError("this model only proposes regions: train its second stage to ground captions")
        words = words or self.text_encoder.encode([caption.ids for caption in captions])
        inputs = [x for own, n in zip(encoded.images, per_image, strict=True) for x in [own.inputs] * n]
        scores: list[Tensor] = self.matcher(inputs, words, captions)
        return scores

    def chosen(self, caption: Tokens, scores: Tensor) -> list[tuple[int, ...]]:
        """The regions of each phrase, by the rule for plurals."""
        plural = caption.plural if isinstance(caption, PluralTokens) else (False,) * len(scores)
        threshold = torch.logit(torch.tensor(self.config.plural_threshold)).item()
        every = self.config.plural_rule == "all"
        found = []
        for S, several in zip(scores.float().cpu().numpy(), plural, strict=True):
            rows = choose_regions(S, plural=several or every, threshold=threshold)
            found.append(rows or choose_regions(S, plural=not every, threshold=threshold))
        return found

    def _union(self, encoded: Regions, image: int, rows: Sequence[int]) -> Tensor:
        own = encoded.images[image].masks
        union = own.new_zeros(encoded.size)
        if rows:
            height, width = own.shape[1:]
            union[:height, :width] = own[list(rows)].amax(0)
        return union

    def forward(self, batch: TrainingBatch) -> Any:
        """What the loss of the trained stage is computed from."""
        if self.reads_regions:
            encoder = self.feature_encoder
            regions = encoder.pyramid(batch.images) if batch.cached else encoder(batch.images)
            return regions, self.match(regions, batch.captions, per_image=batch.per_image, words=batch.words)
        pyramid = self.pyramid(batch.images)
        F = self.head.neck(pyramid)
        if self.config.stage == "one":
            assert self.head.queries is not None
            return self.head.queries(pyramid, F)
        regions = RegionEncoder(self).of_segments(pyramid, F, [own.masks for own in batch.segments])
        return regions, self.match(regions, batch.captions, per_image=batch.per_image, words=batch.words)

    def loss(self, batch: TrainingBatch, network: nn.Module) -> MethodLoss:
        """Of stage one: BCE, Dice and score of all layers. Of stage two: BCE of phrases and regions."""
        share = len(batch.images) / batch.size
        with batch.autocast():
            found = network(batch)
        if self.config.stage == "one":
            layers = [layer.float() for layer in found]
            terms = proposal_losses(layers, batch.segments, self.config.instances)
        else:
            regions, scores = found
            terms = {"match": self._matching_loss(regions, scores, batch)}
        total = torch.stack(list(terms.values())).sum() * share
        return MethodLoss(total, {name: float(term.detach()) * share for name, term in terms.items()})

    def _matching_loss(self, regions: Regions, scores: Sequence[Tensor], batch: TrainingBatch) -> Tensor:
        """BCE over the phrases whose regions are known, and the regions of their images."""
        images = zip(batch.segments, regions.images, batch.per_image, strict=True)
        targets = []
        for segments, own, number in images:
            height, width = (
                min(a, b) for a, b in zip(own.masks.shape[1:], segments.valid.shape, strict=True)
            )
            cut = (slice(None), slice(height), slice(width))
            overlap = best_regions(segments.masks[cut], own.inside[cut], segments.valid[cut[1:]])
            targets.append((matched_regions(segments.members, overlap), number))
        Y, S, place = [], [], 0
        for target, number in targets:
            mine = scores[place : place + number]
            S.append(torch.cat([s.flatten() for s in mine]) if number else target.new_zeros(0))
            Y.append(target)
            place += number
        known = batch.targets.absent | torch.cat(
            [y.any(1) for y in Y]
        )  # a phrase without a region is unknown
        rows = known.split([len(y) for y in Y])
        cells = torch.cat([own[:, None].expand_as(y).flatten() for own, y in zip(rows, Y, strict=True)])
        return matching_loss(torch.cat(S).float(), torch.cat([y.flatten() for y in Y]), cells)


def fold_of(name: str) -> Literal["first", "second"]:
    """The half that an image belongs to, by the name of its file without ending."""
    return "first" if hashlib.sha256(f"fold {name}".encode()).digest()[0] % 2 else "second"


def with_plurals(tokens: PluralTokens, plural: Sequence[bool]) -> PluralTokens:
    """The same phrases, said to be plural or not by someone who knows."""
    return replace(tokens, plural=tuple(plural))
