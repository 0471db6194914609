"""Point and draw: which one of its kind a phrase means. It goes beyond the paper, see docs/deviations.md.

The words of a caption attend to each other and to the tokens of the image. A softmax over the tokens points
at some of them, or nowhere. Filters made from the tokens there and from the phrase draw the last map.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import cast

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.config import PointingConfig
from ppmn.model.attention import Attention, Memory
from ppmn.model.places import WAVES, centres, waves
from ppmn.model.presence import Presence
from ppmn.model.pyramid import Pyramid, group_norm, of_images
from ppmn.types import Size

TOKEN_STRIDE = 2  # of tokens, in pixels of F
_HIDDEN = 8  # channels inside a filter
_MAP_SCALE = 0.25  # of a map's logits as the input of a filter


@dataclass(frozen=True)
class TokenFeatures:
    """What pointing and drawing need of a batch of images; n tokens at the stride of p4."""

    tokens: Tensor  # (B, n, C), with context
    keys: Tensor  # (B, n, C)
    memory: tuple[Memory, ...]  # of each phrase layer
    presence: tuple[Memory, ...]  # of each layer that decides on presence
    pixels: Tensor  # (B, D, H, W), what filters draw on
    places: Tensor  # (B, n, 2), centres of the tokens, x and y from -1 to 1
    grid: Tensor  # (B, HW, 2), centres of the pixels
    valid: Tensor | None  # (B, n), False: padding; None: no token is padding

    def single(self, index: int) -> "TokenFeatures":
        """The features of one image of a batch without padding."""
        own = slice(index, index + 1)
        memory, presence = (
            tuple((keys[own], values[own]) for keys, values in kept) for kept in (self.memory, self.presence)
        )
        return replace(
            self,
            tokens=self.tokens[own],
            keys=self.keys[own],
            memory=memory,
            presence=presence,
            pixels=self.pixels[own],
            places=self.places[own],
            grid=self.grid[own],
        )

    def coarse(self) -> "TokenFeatures":
        """The same, with pixels at the stride of the tokens."""
        return replace(self, pixels=fn.avg_pool2d(self.pixels, TOKEN_STRIDE), grid=self.places)


@dataclass(frozen=True)
class Pointed:
    """Where phrases point."""

    logits: Tensor  # (M, n), of the tokens; their softmax is taken together with `nowhere`
    nowhere: Tensor  # (M,), the logit of the slot for what is not in the image
    phrases: Tensor  # (M, C), phrase vectors as they point

    @property
    def somewhere(self) -> Tensor:
        """The logit of the probability that a phrase points into the image, (M,)."""
        return self.logits.logsumexp(-1) - self.nowhere

    def certainty(self, drawn: Tensor) -> Tensor:
        """How much of what a phrase points at lies inside its drawn mask, (M,), from 0 to 1."""
        covered = fn.avg_pool2d((drawn > 0).to(drawn.dtype)[:, None], TOKEN_STRIDE).flatten(1)  # (M, n)
        return (self.logits.softmax(1) * covered).sum(1)


class Layer(nn.Module):
    """Self-attention and a feed-forward network, both after a norm and with a residual."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.attend = Attention(channels, channels, inner)
        self.hidden = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, 2 * inner), nn.GELU())
        self.out = nn.Linear(2 * inner, channels)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """x (B, t, C), of which `valid` (B, t) is attended to."""
        x = self.attend_self(x, None if valid is None else valid[:, None, None])  # (B, 1, 1, t)
        return x + self.out(self.hidden(x))

    def attend_self(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = self.norm(x)
        return x + self.attend(y, self.attend.memory(y), mask)


class PhraseLayer(Layer):
    """A layer in which words also attend to the tokens of their image; it begins as the identity."""

    def __init__(self, channels: int, image_channels: int) -> None:
        super().__init__(channels, image_channels)
        self.image_norm = nn.LayerNorm(channels)
        self.attend_image = Attention(channels, image_channels, image_channels)
        for linear in (self.attend.out, self.attend_image.out, self.out):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        together: Tensor | None,
        memory: Memory,
        tokens_valid: Tensor | None,
        words_per_image: list[int],
    ) -> Tensor:
        """The words x (1, t, C_r) of all captions: `words_per_image[b]` of them attend to image b.

        Words attend to those that `together` (t, t) puts into their own caption.
        """
        x = self.attend_self(x, together)
        keys, values = (of_images(kept) for kept in memory)
        seen = []
        for image, mine in enumerate(x.split(words_per_image, 1)):
            inside = None if tokens_valid is None else tokens_valid[image, None, None, None]  # (1, 1, 1, n)
            own = (keys[image][None], values[image][None])
            seen.append(self.attend_image(self.image_norm(mine), own, inside))
        x = x + torch.cat(seen, 1)
        return x + self.out(self.hidden(x))


class Pointing(nn.Module):
    """The image side, the phrase layers, the pointing and the drawing."""

    def __init__(self, channels_t: int, channels_v: int, channels_r: int, config: PointingConfig) -> None:
        super().__init__()
        C, D = config.channels, config.features
        self.draws = config.draws
        self.project = nn.Sequential(nn.LayerNorm(channels_t), nn.Linear(channels_t, C))
        self.position = nn.Sequential(nn.Linear(2 + 4 * WAVES, C), nn.GELU(), nn.Linear(C, C))
        self.image_layers = nn.ModuleList(Layer(C, C) for _ in range(config.image_layers))
        self.image_norm = nn.LayerNorm(C)
        self.key = nn.Linear(C, C)
        self.finer, self.lateral = nn.Linear(C, 4 * 2 * D), nn.Conv2d(channels_v, 2 * D, 1)
        self.norm1, self.conv1 = nn.GroupNorm(8, 2 * D), nn.Conv2d(2 * D, 2 * D, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, 2 * D), nn.Conv2d(2 * D, D, 3, padding=1)
        self.phrase_layers = nn.ModuleList(PhraseLayer(channels_r, C) for _ in range(config.phrase_layers))
        self.phrase = nn.Sequential(nn.LayerNorm(channels_r), nn.Linear(channels_r, C))
        self.nowhere = nn.Linear(C, 1)
        self.presence = (
            Presence(channels_t, channels_r, C, config.presence_layers) if config.presence_layers else None
        )
        self.object = nn.Parameter(torch.randn(C) / math.sqrt(C))  # in a phrase's place: the object here
        self.sizes = [_HIDDEN * (D + 3), _HIDDEN, _HIDDEN * _HIDDEN, _HIDDEN, _HIDDEN, 1, 1]
        self.phrase_norm = nn.LayerNorm(C)
        self.filter_hidden, self.filter_out = nn.Linear(2 * C, C), nn.Linear(C, sum(self.sizes))
        with torch.no_grad():
            self.filter_out.bias[-1] = 1  # the drawn map begins as the last map

    def encode(self, pyramid: Pyramid, F: Tensor) -> TokenFeatures:
        """The image side: the encoder's own tokens and the neck's F (B, C_v, H, W)."""
        own, places, x, valid = self.contextual_tokens(pyramid)
        layers = cast(list[PhraseLayer], list(self.phrase_layers))
        memory = tuple(layer.attend_image.memory(x) for layer in layers)
        presence = self.presence.memory(own, x) if self.presence else ()
        sizes = pyramid.valid_sizes
        grid = centres(len(F), (F.shape[2], F.shape[3]), sizes and sizes.at(stride=2), own)
        pixels = self.fine_pixels(x, F, pyramid.tokens.shape[-2:], pyramid.sizes(1))
        return TokenFeatures(x, self.key(x), memory, presence, pixels, places, grid, valid)

    def contextual_tokens(self, pyramid: Pyramid) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The encoder's own tokens (B, n, C_t), their places, themselves with context, which are valid."""
        given, sizes = pyramid.tokens, pyramid.valid_sizes
        mask = pyramid.mask(2)
        valid = None if mask is None else mask.flatten(1) > 0  # (B, n)
        places = centres(len(given), given.shape[-2:], sizes and sizes.at(stride=4), given)
        own = given.flatten(2).transpose(1, 2)  # (B, n, C_t)
        x = self.project(own) + self.position(waves(places))  # (B, n, C)
        for layer in self.image_layers:
            x = layer(x, valid)
        return own, places, self.image_norm(x), valid

    def fine_pixels(self, x: Tensor, F: Tensor, size: Sequence[int], sizes: Sequence[Size] | None) -> Tensor:
        """What filters draw on, (B, D, H, W): tokens at twice their size, and F."""
        finer = self.finer(x).unflatten(-1, (2, 2, -1)).unflatten(1, size)  # (B, h, w, 2, 2, 2 D)
        finer = finer.transpose(2, 3).flatten(1, 4).transpose(1, 2)  # (B, 2 D, H W)
        pixels = self.lateral(F) + finer.unflatten(2, (2 * size[0], 2 * size[1]))
        for norm, conv in ((self.norm1, self.conv1), (self.norm2, self.conv2)):
            pixels = conv(fn.gelu(group_norm(pixels, norm, sizes)))
        return pixels

    def contextualize(
        self, words: Sequence[Tensor], features: TokenFeatures, per_image: Sequence[int]
    ) -> list[Tensor]:
        """Word vectors of captions, (t, C_r) each, after they saw each other and their image."""
        lengths = [caption.shape[0] for caption in words]
        if not sum(lengths):
            return list(words)
        x = torch.cat(list(words))[None]  # (1, t, C_r), without padding
        captions = iter(lengths)
        words_per_image = [sum(islice(captions, number)) for number in per_image]
        together = _same_caption(lengths, x.device)
        for layer, memory in zip(self.phrase_layers, features.memory, strict=True):
            x = layer(x, together, memory, features.valid, words_per_image)
        return list(x[0].split(lengths))

    def point(self, vectors: Tensor, features: TokenFeatures, counts: Sequence[int]) -> Pointed:
        """Where phrases of vectors (M, C_r) point: `counts[b]` of them belong to image b."""
        R = self.phrase(vectors)  # (M, C)
        logits = []
        keys = of_images(features.keys)
        for image, rows in enumerate(R.split(list(counts))):
            mine = rows @ keys[image].T / math.sqrt(R.shape[1])  # (m, n)
            number = torch.full((), mine.shape[1], device=R.device, dtype=R.dtype)
            if features.valid is not None:
                mine = mine.masked_fill(~features.valid[image], -math.inf)
                number = features.valid[image].sum()
            logits.append(mine - number.log())  # so that `nowhere` weighs the same at every image size
        return Pointed(torch.cat(logits), self.nowhere(R)[:, 0], R)

    def present(
        self, pointed: Pointed, named: Tensor | None, features: TokenFeatures, counts: Sequence[int]
    ) -> Tensor:
        """The logit that what each phrase names is in the image, (M,).

        `named` (M, C_r) are the phrases before they saw the image.
        """
        if self.presence is None or named is None:
            return pointed.somewhere
        return self.presence(named, features.presence, features.valid, counts)

    def draw(
        self,
        points: Tensor,
        phrases: Tensor,
        H: Tensor | None,
        features: TokenFeatures,
        counts: Sequence[int],
    ) -> Tensor:
        """Maps (M, H, W) drawn from the tokens at `points` (M,) for phrase vectors (M, C) and last maps."""
        tokens, places = of_images(features.tokens), of_images(features.places)
        pixels, grids = of_images(features.pixels.flatten(2)), of_images(features.grid)
        drawn = []
        rows = zip(points.split(list(counts)), phrases.split(list(counts)), strict=True)
        maps = H.flatten(1).split(list(counts)) if H is not None else [None] * len(counts)
        for image, (at, R) in enumerate(rows):
            token, place = tokens[image][at], places[image][at]  # (m, C), (m, 2)
            hidden = self.filter_hidden(torch.cat([token, self.phrase_norm(R)], -1))
            parameters = self.filter_out(fn.gelu(hidden))  # (m, P)
            drawn.append(self.run_filters(parameters, place, maps[image], pixels[image], grids[image]))
        return torch.cat(drawn).view(-1, *features.pixels.shape[-2:])

    def draw_objects(self, points: Tensor, features: TokenFeatures, counts: Sequence[int]) -> Tensor:
        """The objects at tokens, whatever they are: (M, H, W)."""
        return self.draw(points, self.object.expand(points.shape[0], -1), None, features, counts)

    def run_filters(
        self, parameters: Tensor, place: Tensor, H: Tensor | None, pixels: Tensor, grid: Tensor
    ) -> Tensor:
        """Run filters with parameters (m, P) over pixels (D, HW) with centres (HW, 2), (m, HW)."""
        w1, b1, w2, b2, w3, b3, gate = parameters.split(self.sizes, -1)
        on_pixels, on_place, on_map = w1.unflatten(-1, (_HIDDEN, -1)).split(
            [w1.shape[1] // _HIDDEN - 3, 2, 1], -1
        )
        # the relative place, 2 (grid - place), enters linearly: its constant part goes to the bias
        bias = b1 - 2 * (on_place @ place[..., None])[..., 0]  # (m, 8)
        weights, inputs = torch.cat([on_pixels, 2 * on_place], -1), torch.cat([pixels, grid.T])
        z = torch.addmm(bias.flatten()[:, None], weights.flatten(0, 1), inputs)  # (8 m, HW)
        z = z.unflatten(0, (parameters.shape[0], _HIDDEN))
        if H is not None:
            z = z + on_map * (_MAP_SCALE * H)[:, None]
        z = torch.baddbmm(b2[..., None], w2.unflatten(-1, (_HIDDEN, _HIDDEN)), z.relu()).relu()
        out = torch.baddbmm(b3[..., None], w3[:, None], z)[:, 0]
        return out if H is None else out + gate * H


def _same_caption(lengths: Sequence[int], device: torch.device) -> Tensor | None:
    """Which words are of one caption, (t, t); None: all are."""
    if len(lengths) == 1:  # its length may be a symbol, while a graph is exported
        return None
    number = torch.arange(len(lengths), device=device).repeat_interleave(torch.tensor(lengths, device=device))
    return number[:, None] == number
