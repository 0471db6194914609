"""The pixel-phrase matching network; `Head` follows section 3 of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ppmn.config import ModelConfig
from ppmn.model.draws import draw_mean, tokens_inside
from ppmn.model.lcpa import PaperRound, ReleasedRound, compatible_pixels, sample
from ppmn.model.losses import point_loss, ppm_losses, presence_loss, total_loss
from ppmn.model.matching import LinearProjection, PixelProjection, match
from ppmn.model.method import Method, MethodLoss, TrainingBatch
from ppmn.model.neck import SemanticFPN
from ppmn.model.pointing import TOKEN_STRIDE, Pointed, Pointing, TokenFeatures
from ppmn.model.pyramid import Features, ImageEncoder, Pyramid, ValidSizes
from ppmn.model.text import Queries, TextEncoder, Tokens

OWN_POINTS = 0.3  # of the queries that are drawn from the token they point at while training


@dataclass(frozen=True)
class PixelFeatures:
    """A batch of encoded images: the projected pixels that each of the L + 1 matchings uses."""

    rounds: tuple[Tensor, ...]  # L + 1 of (B, C, H, W)
    valid_sizes: ValidSizes | None = None  # at F; None: padding counts as image
    tokens: TokenFeatures | None = None  # None: the network does not point

    def single(self, index: int) -> "PixelFeatures":
        """The features of one image of a batch without padding."""
        rounds = tuple(F[index : index + 1] for F in self.rounds)
        sizes = self.valid_sizes and replace(
            self.valid_sizes, sizes=self.valid_sizes.sizes[index : index + 1]
        )
        return PixelFeatures(rounds, sizes, self.tokens and self.tokens.single(index))


@dataclass(frozen=True)
class Maps:
    """Raw matching maps of every round, and the pixels that each round aggregated.

    A network that points has one map more, the drawn one.
    """

    H: list[Tensor]  # L + 1 of (M, H, W)
    indices: list[Tensor]  # H_index, L of (M, S), flat
    pointed: Pointed | None = None
    presence: Tensor | None = None  # (M,), the logit that what a query names is in the image
    points: Tensor | None = None  # (M,), the most probable token of each; in training the one drawn from
    certainty: Tensor | None = None  # (M,), see `Pointed.certainty`; not while training
    objects: Tensor | None = None  # (M, H, W), objects at tokens inside the masks; only while training


class Head(nn.Module):
    """Neck, matching, LCPA rounds and pointing: from a feature pyramid and query vectors to maps."""

    def __init__(
        self, channels_v: int, channels_r: int, config: ModelConfig, channels_t: int | None = None
    ) -> None:
        super().__init__()
        C, L, released = config.channels, config.rounds, config.variant == "released"
        self.config = config
        self.neck = SemanticFPN(channels_v)
        first = PixelProjection if released else LinearProjection
        source = C if released else channels_v  # released: each round projects F^; paper: F
        self.project_pixels = nn.ModuleList(
            [first(channels_v, C), *(PixelProjection(source, C) for _ in range(L))]
        )
        self.project_phrases = nn.Linear(channels_r, C, bias=released)
        self.rounds = nn.ModuleList((ReleasedRound if released else PaperRound)(config) for _ in range(L))
        self.pointing: Pointing | None = None
        if config.pointing:
            self.pointing = Pointing(channels_t or channels_v, channels_v, channels_r, config.pointing)

    def forward(self, pyramid: Pyramid, phrases: Tensor, counts: Sequence[int]) -> Maps:
        """Maps of all queries: `counts[b]` rows of `phrases` (M, C_r) belong to image b."""
        return self.ground(self.encode(pyramid), phrases, counts)

    def encode(self, pyramid: Pyramid) -> PixelFeatures:
        """The image side, which is the same for all phrases."""
        sizes, valid_sizes = pyramid.sizes(1), pyramid.valid_sizes
        F = self.neck(pyramid)  # (B, C_v, H, W)
        first, *later = self.project_pixels
        pixels = first(F, sizes)  # eq. 1, F^, (B, C, H, W)
        source = pixels if self.config.variant == "released" else F
        rounds = (pixels, *(project(source, sizes) for project in later))
        tokens = self.pointing.encode(pyramid, F) if self.pointing else None
        return PixelFeatures(rounds, valid_sizes and valid_sizes.at(stride=2), tokens)

    def ground(
        self,
        pixels: PixelFeatures,
        phrases: Tensor,
        counts: Sequence[int],
        given: Sequence[Tensor | None] | None = None,
        inside: Tensor | None = None,
        named: Tensor | None = None,
    ) -> Maps:
        """The phrase side; `given` indices replace the selected ones, round by round.

        While training, `inside` (M, n) says how much of each token the true mask of a query covers. `named`
        (M, C_r) are the phrases before they saw the image.
        """
        R = self.project_phrases(phrases)  # R^0, the other half of that equation, (M, C)
        H = match(R, pixels.rounds[0], counts)  # H^0, (M, H, W)
        maps = Maps([H], [])
        for number, refine in enumerate(self.rounds):  # eq. 10
            before, F = pixels.rounds[number : number + 2]
            indices, missing = given[number] if given else None, None
            if indices is None and self.config.pixels > 0:
                indices, missing = compatible_pixels(H, self.config, counts, pixels.valid_sizes)
            context = None
            if indices is not None:
                maps.indices.append(indices)
                source = F if self.config.variant == "released" else before
                context = sample(source, indices, counts)  # H_f, (M, S, C)
            R, projected = refine(R, context, missing)  # R^(l+1), (M, C)
            H = match(projected, F, counts)  # H^(l+1)
            maps.H.append(H)
        if self.pointing is None or pixels.tokens is None:
            return maps
        pointed = self.pointing.point(phrases, pixels.tokens, counts)
        presence = self.pointing.present(pointed, named, pixels.tokens, counts)
        maps = replace(maps, pointed=pointed, presence=presence)
        return self.draw(self.pointing, maps, pointed, pixels.tokens, counts, inside)

    def draw(
        self,
        pointing: Pointing,
        maps: Maps,
        pointed: Pointed,
        tokens: TokenFeatures,
        counts: Sequence[int],
        inside: Tensor | None,
    ) -> Maps:
        """One more map, drawn from the tokens a query points at; in training mostly from one in its mask."""
        points = pointed.logits.argmax(1)
        if inside is None:
            drawn = draw_mean(pointing, pointed, maps.H[-1], tokens, counts)
            certainty = pointed.certainty(drawn)
            return replace(maps, H=[*maps.H, drawn], points=points, certainty=certainty)
        within = tokens_inside(pointed.logits, inside)
        objects = pointing.draw_objects(within, tokens, counts)
        # some queries keep their own token, right or wrong, so that drawing learns to bear wrong ones
        points = torch.where(torch.rand(len(points), device=points.device) < OWN_POINTS, points, within)
        drawn = pointing.draw(points, pointed.phrases, maps.H[-1], tokens, counts)
        return replace(maps, H=[*maps.H, drawn], points=points, objects=objects)


class PPMN(Method):
    """The whole network, from encoders of any kind."""

    config_type = ModelConfig
    config: ModelConfig

    def __init__(self, image_encoder: ImageEncoder, text_encoder: TextEncoder, config: ModelConfig) -> None:
        super().__init__(image_encoder, text_encoder, config)
        channels = (image_encoder.channels, text_encoder.channels)
        self.head = Head(*channels, config, image_encoder.token_channels)

    def forward(
        self,
        images: Sequence[Tensor] | Sequence[Features],
        captions: Sequence[Tokens],
        *,
        per_image: Sequence[int] | None = None,
        words: Sequence[Tensor] | None = None,
        inside: Tensor | None = None,
    ) -> tuple[Maps, Queries]:
        """Resized images, or the outputs of a frozen image encoder, and tokenized captions -> maps.

        `per_image` says how many of the captions belong to each image, one if it is not given; `words` are
        the outputs of a frozen text encoder; `inside` see `Head.ground`.
        """
        pixels = self.encode(self.pyramid(images))
        return self.ground(pixels, captions, per_image=per_image, words=words, inside=inside)

    def encode(self, pyramid: Pyramid) -> PixelFeatures:
        """The image side, which is the same for all captions."""
        return self.head.encode(pyramid)

    def ground(
        self,
        pixels: PixelFeatures,
        captions: Sequence[Tokens],
        *,
        per_image: Sequence[int] | None = None,
        words: Sequence[Tensor] | None = None,
        inside: Tensor | None = None,
    ) -> tuple[Maps, Queries]:
        """Encoded images and tokenized captions -> maps; options as in `forward`."""
        per_image = per_image or [1] * len(captions)
        words = words or self.text_encoder.encode([caption.ids for caption in captions])
        queries = self.text_encoder.queries(captions, words, per_image)
        named = queries.vectors
        if self.head.pointing is not None and pixels.tokens is not None:
            words = self.head.pointing.contextualize(words, pixels.tokens, per_image)
            queries = self.text_encoder.queries(captions, words, per_image)
        maps = self.head.ground(pixels, queries.vectors, queries.counts, inside=inside, named=named)
        return maps, queries

    @property
    def target_scale(self) -> int:
        """The released code compares masks with maps at twice their size."""
        return 2 if self.config.variant == "released" else 1

    def loss(self, batch: TrainingBatch, network: nn.Module) -> MethodLoss:
        """BCE and Dice of every round, and the loss of pointing where the network points."""
        targets, dtype = batch.targets, batch.targets.Y.dtype
        inside = targets.inside(TOKEN_STRIDE * self.target_scale) if self.config.pointing else None
        with batch.autocast():
            maps, _ = network(
                batch.images, batch.captions, per_image=batch.per_image, words=batch.words, inside=inside
            )
        H = [h.to(dtype) for h in maps.H]
        rounds = ppm_losses(H, targets.Y, self.config, targets.valid, batch.pixels, batch.rows)
        pointing = self._pointing_loss(maps, batch, inside)
        presence = targets.Y.new_zeros(())
        if self.head.pointing and self.head.pointing.presence and maps.presence is not None:
            present = targets.Y.flatten(1).amax(1) > 0
            presence = presence_loss(maps.presence.to(dtype), present, targets.absent, batch.rows)
        terms = {
            "bce": sum(float(part.bce.detach()) for part in rounds),
            "dice": sum(float(part.dice.detach()) for part in rounds),
            "point": float(pointing.detach()),
            "presence": float(presence.detach()),
        }
        return MethodLoss(total_loss(rounds) + pointing + presence, terms)

    def _pointing_loss(self, maps: Maps, batch: TrainingBatch, inside: Tensor | None) -> Tensor:
        """The losses of pointing and of the objects that are drawn without a phrase."""
        targets = batch.targets
        if maps.pointed is None or maps.objects is None or inside is None or targets.valid is None:
            return targets.Y.new_zeros(())
        single, Y, counts = targets.single, targets.Y, (batch.pixels, batch.rows)
        drawn = maps.objects[single].to(Y.dtype)
        (objects,) = ppm_losses([drawn], Y[single], self.config, targets.valid[single], *counts)
        return point_loss(maps.pointed, inside, targets.absent, batch.rows) + objects.bce + objects.dice

    def prepare(self, *, initialised: bool) -> None:
        """Without pixels nothing is aggregated."""
        if self.config.pixels == 0:
            for refine in self.head.rounds:
                refine.aggregate.requires_grad_(False)
