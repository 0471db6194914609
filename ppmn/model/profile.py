"""`ppmn profile`: parameters and multiply-adds by part, and the paper's claims beside them.

Counted are the convolutions and matrix products of a forward pass on the meta device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from ppmn.config import ModelConfig
from ppmn.errors import InputError
from ppmn.model.draws import draw_mean
from ppmn.model.folder import build_image_encoder, build_text_encoder
from ppmn.model.network import Head
from ppmn.model.pointing import Pointing
from ppmn.model.preprocess import Preprocess
from ppmn.model.pyramid import ImageEncoder, Pyramid
from ppmn.types import Size

_CLAIMS = {"matching": 1.14e9, "LCPA": 2.03e9}  # "GFLOPs" in section 4.3 of the paper
_CLAIMED_SIZE, _CLAIMED_QUERIES = (800, 1216), 30
_RELEASED_QUERIES, _RELEASED_PIECES = 64, 230  # what the released code pads every caption to


@dataclass(frozen=True)
class PartCost:
    """One part of the network: how many numbers it stores, and its multiply-adds."""

    part: str
    parameters: int
    ours: float
    released: float  # of the released code, for the same queries and word pieces
    padded: float  # of the released code with the padding that it always adds


@dataclass(frozen=True)
class Profile:
    """The costs of all parts for one image and one caption."""

    size: Size  # of the resized image
    queries: int
    pieces: int
    parts: tuple[PartCost, ...]

    def table(self) -> str:
        """One line per part, with a heading and a sum."""
        names = ("parameters", "ours", "released", "padded")
        total = PartCost("all", *(sum(getattr(part, name) for part in self.parts) for name in names))
        lines = [
            f"{self.size[0]} x {self.size[1]} pixels, {self.queries} queries, {self.pieces} word pieces",
            f"{'part':<14} {'parameters':>11} {'ours':>10} {'released code':>14} {'with padding':>13}",
        ]
        for row in (*self.parts, total):
            released, padded = (f"{cost / 1e9:.3f} G" if cost else "-" for cost in (row.released, row.padded))
            ours = f"{row.parameters / 1e6:>9.2f} M {row.ours / 1e9:>8.3f} G"
            lines.append(f"{row.part:<14} {ours} {released:>14} {padded:>13}")
        padding = f"{_RELEASED_QUERIES} queries and {_RELEASED_PIECES} word pieces"
        return "\n".join([*lines, f"with padding: every caption padded to {padding}"])


def profile(
    config: ModelConfig, encoder: ImageEncoder, bert: Any, size: Size, queries: int, pieces: int
) -> Profile:
    """The cost of every part of a model whose encoders are on the meta device.

    `size` is rounded to the multiples that the image encoder accepts, as images are.
    """
    limit = bert.config.max_position_embeddings
    if not 1 <= pieces <= limit:
        raise InputError(f"{pieces} word pieces; the text encoder takes 1 to {limit}")
    if queries < 1:
        raise InputError(f"{queries} phrases; there must be at least 1")
    size = Preprocess(min(size), max(size), encoder.multiple).size(*size)
    with torch.device("meta"):
        head = Head(encoder.channels, bert.config.hidden_size, config, encoder.token_channels)
    pyramid, image = _image_cost(encoder, size)
    ours = {"image encoder": image, "text encoder": _text_cost(bert, pieces)}
    pointing, head.pointing = head.pointing, None
    ours |= _head_costs(head, pyramid, queries)
    released = _released_costs(size, queries, pieces)
    padded = _released_costs(size, _RELEASED_QUERIES, _RELEASED_PIECES)
    modules: dict[str, list[Any]] = {"image encoder": [encoder], "text encoder": [bert], "neck": [head.neck]}
    modules["matching"] = [head.project_pixels[0], head.project_phrases]
    modules |= {f"round {n + 1}": [head.project_pixels[n + 1], r] for n, r in enumerate(head.rounds)}
    if pointing is not None:
        modules["point and draw"] = [pointing]
        ours["point and draw"] = _pointing_cost(pointing, pyramid, bert.config.hidden_size, queries, pieces)
    parts = [
        PartCost(part, _stored(modules[part]), cost, released.get(part, 0), padded.get(part, 0))
        for part, cost in ours.items()
    ]
    return Profile(size, queries, pieces, tuple(parts))


def encoders_without_weights(config: ModelConfig) -> tuple[ImageEncoder, nn.Module]:
    """The encoders of a configuration on the meta device; bert-base-uncased needs no files."""
    with torch.device("meta"):
        encoder = build_image_encoder(config)
        bert = BertModel(BertConfig(), add_pooling_layer=False)
    if config.text.source != "bert-base-uncased":
        bert = build_text_encoder(config, weights=False).bert
    return encoder.to("meta"), bert.to("meta")


def claims() -> str:
    """The costs that the paper states for its two parts, beside the multiply-adds of the released code."""
    height, width = _CLAIMED_SIZE
    costs = released_head_costs((height // 8, width // 8), _CLAIMED_QUERIES)
    counted, rounds = {"matching": costs["matching"], "LCPA": costs["round 1"]}, ModelConfig().rounds
    where = f"{height} x {width} pixels with {_CLAIMED_QUERIES} queries"
    lines = [f"The paper's claims, and the multiply-adds of the released code at {where}:"]
    for part, claim in _CLAIMS.items():
        lines.append(f"{part:<9} {claim / 1e9:.2f} GFLOPs claimed, {counted[part] / 1e9:.3f} G counted")
    together = f"LCPA is one round of {rounds}, which take {rounds * counted['LCPA'] / 1e9:.2f} G together;"
    return "\n".join([*lines, together, f"the claims leave out the neck, {costs['neck'] / 1e9:.1f} G."])


def released_head_costs(map_size: Size, queries: int) -> dict[str, float]:
    """Multiply-adds of the released head at a size of F: it upsamples maps and projects gathered pixels."""
    config, HW, N = ModelConfig(), map_size[0] * map_size[1], queries
    C, S = config.channels, config.pixels
    neck = 9 * C * C * HW * (4 + 2 / 4 + 1 / 16) + C * C * HW  # 3x3 at strides 8, 16 and 32, and the 1x1
    project, match = C * C * HW, N * C * HW
    attention = 2 * N * C * C + 2 * N * S * C * C + 2 * N * S * C  # query and out; keys and values; the rest
    ffn, mlp = 2 * N * C * 8 * C, 4 * N * C * C
    costs = {"neck": neck, "matching": project + N * 768 * C + match}
    lcpa = project + attention + ffn + mlp + match
    return costs | {f"round {n + 1}": lcpa for n in range(config.rounds)}


def _released_costs(size: Size, queries: int, pieces: int) -> dict[str, float]:
    """Multiply-adds of the whole released network."""
    encoder, bert = encoders_without_weights(ModelConfig())
    height, width = encoder.padded_size(*size)
    head = released_head_costs((height // encoder.stride, width // encoder.stride), queries)
    return {"image encoder": _image_cost(encoder, size)[1], "text encoder": _text_cost(bert, pieces), **head}


def _stored(modules: Sequence[nn.Module]) -> int:
    """How many numbers a saved model holds: parameters, and the statistics of frozen norms."""
    return sum(tensor.numel() for module in modules for tensor in module.state_dict().values())


def _multiply_adds(run: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """A result, and its multiply-adds by module name."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = run()
    return result, {str(name): sum(ops.values()) / 2 for name, ops in counter.get_flop_counts().items()}


def _image_cost(encoder: ImageEncoder, size: Size) -> tuple[Pyramid, float]:
    image = torch.empty(3, *size, dtype=torch.uint8, device="meta")
    pyramid, found = _multiply_adds(lambda: encoder([image]))
    return pyramid, found["Global"]


def _text_cost(bert: nn.Module, pieces: int) -> float:
    ids = torch.zeros(1, pieces, dtype=torch.long, device="meta")
    return _multiply_adds(lambda: bert(input_ids=ids))[1]["Global"]


def _head_costs(head: Head, pyramid: Pyramid, queries: int) -> dict[str, float]:
    """Multiply-adds of our head."""
    phrases = torch.empty(queries, head.project_phrases.in_features, device="meta")
    _, found = _multiply_adds(lambda: head(pyramid, phrases, [queries]))

    def of(name: str) -> float:
        return found.get(f"Head.{name}", 0)

    pixels = [of(f"project_pixels.{n}") for n in range(len(head.rounds) + 1)]
    rounds = [of(f"rounds.{n}") for n in range(len(head.rounds))]
    inside = of("neck") + of("project_phrases") + sum(pixels) + sum(rounds)
    match = (found["Global"] - inside) / len(pixels)  # every matching costs the same
    costs = {"neck": of("neck"), "matching": of("project_phrases") + pixels[0] + match}
    return costs | {f"round {n + 1}": rounds[n] + pixels[n + 1] + match for n in range(len(rounds))}


def _pointing_cost(pointing: Pointing, pyramid: Pyramid, channels_r: int, queries: int, pieces: int) -> float:
    """Multiply-adds of the image side, the phrase layers, the pointing, presence and the drawing."""
    F = torch.empty_like(pyramid.levels[1])
    words, phrases = (torch.empty(rows, channels_r, device="meta") for rows in (pieces, queries))

    def run() -> Tensor:
        tokens = pointing.encode(pyramid, F)
        pointing.contextualize([words], tokens, [1])
        pointed = pointing.point(phrases, tokens, [queries])
        pointing.present(pointed, phrases, tokens, [queries])
        return draw_mean(pointing, pointed, F[0, :1].expand(queries, -1, -1), tokens, [queries])

    return _multiply_adds(run)[1]["Global"]
