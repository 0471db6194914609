"""`ppmn profile`: parameters and multiply-adds by part, and what the paper's claims turn out to be.

Counted are the convolutions and matrix products of a forward pass that runs on shapes alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from ppmn.config import ModelConfig
from ppmn.errors import InputError
from ppmn.model.folder import build_image_encoder
from ppmn.model.network import Head
from ppmn.model.pyramid import ImageEncoder, Pyramid
from ppmn.model.resnet import COARSEST
from ppmn.model.text import TextEncoder

CLAIMS = {"matching": 1.14e9, "LCPA": 2.03e9}  # "GFLOPs" in section 4.3 of the paper
CLAIMED_SIZE, CLAIMED_ROWS = (800, 1216), 30
RELEASED_ROWS, RELEASED_PIECES = 64, 230  # what the released code pads every caption to


@dataclass(frozen=True)
class Row:
    """One part of the network: numbers it stores, and multiply-adds."""

    part: str
    parameters: int
    ours: float
    released: float  # the released code's, for the same rows and word pieces
    padded: float  # the released code's as it runs, always padded


def profile(
    config: ModelConfig, encoder: Any, bert: Any, size: tuple[int, int], rows: int, pieces: int
) -> list[Row]:
    """Every part of a model at an image size (height, width), a number of queries and of word pieces."""
    if pieces > bert.config.max_position_embeddings:
        raise InputError(
            f"{pieces} word pieces; the text encoder takes {bert.config.max_position_embeddings}"
        )
    with torch.device("meta"):
        head = Head(encoder.channels, bert.config.hidden_size, config)
        theirs, base = build_image_encoder(ModelConfig()), BertModel(BertConfig(), add_pooling_layer=False)
    pyramid, image = image_cost(encoder, size)
    ours = {"image encoder": image, "text encoder": text_cost(bert, pieces)}
    ours |= head_costs(head, pyramid, rows)
    costs, image = [], image_cost(theirs, size)[1]
    height, width = cells(size, COARSEST)
    for n, t in ((rows, pieces), (RELEASED_ROWS, RELEASED_PIECES)):
        first = {"image encoder": image, "text encoder": text_cost(base, t)}
        costs.append(first | released_head_costs((4 * height, 4 * width), n))
    modules = {"image encoder": [encoder], "text encoder": [bert], "neck": [head.neck]}
    modules["matching"] = [head.project_pixels[0], head.project_phrases]
    modules |= {f"round {n + 1}": [head.project_pixels[n + 1], r] for n, r in enumerate(head.rounds)}
    return [
        Row(part, stored(modules[part]), cost, *(c.get(part, 0) for c in costs))
        for part, cost in ours.items()
    ]


def stored(modules: Sequence[nn.Module]) -> int:
    """Numbers that a saved model holds: parameters, and the statistics of frozen norms."""
    return sum(tensor.numel() for module in modules for tensor in module.state_dict().values())


def multiply_adds(run: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """A result, and its multiply-adds by module name."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = run()
    return result, {str(name): sum(ops.values()) / 2 for name, ops in counter.get_flop_counts().items()}


def image_cost(encoder: ImageEncoder, size: tuple[int, int]) -> tuple[Pyramid, float]:
    photo = torch.empty(3, *size, dtype=torch.uint8, device="meta")
    pyramid, found = multiply_adds(lambda: encoder([photo]))
    return pyramid, found["Global"]


def text_cost(bert: nn.Module, pieces: int) -> float:
    ids = torch.zeros(1, pieces, dtype=torch.long, device="meta")
    return multiply_adds(lambda: bert(input_ids=ids))[1]["Global"]


def head_costs(head: Head, pyramid: Pyramid, rows: int) -> dict[str, float]:
    """What our head executes."""
    phrases = torch.empty(rows, head.project_phrases.in_features, device="meta")
    _, found = multiply_adds(lambda: head(pyramid, phrases, [rows]))

    def of(name: str) -> float:
        return found.get(f"Head.{name}", 0)

    rounds = range(len(head.rounds))
    inside = (
        of("neck") + of("project_phrases") + sum(of(f"project_pixels.{n}") for n in range(len(rounds) + 1))
    )
    inside += sum(of(f"rounds.{n}") for n in rounds)
    match = (found["Global"] - inside) / (len(rounds) + 1)  # eq. 2, once a round, all of one size
    costs = {"neck": of("neck"), "matching": of("project_phrases") + of("project_pixels.0") + match}
    return costs | {
        f"round {n + 1}": of(f"rounds.{n}") + of(f"project_pixels.{n + 1}") + match for n in rounds
    }


def released_head_costs(grid: tuple[int, int], rows: int) -> dict[str, float]:
    """What the released head executes on a map of stride 8: doubled maps and gathered pixels in full."""
    config, HW, N = ModelConfig(), grid[0] * grid[1], rows
    C, S = config.channels, config.pixels
    neck = 9 * C * C * HW * (4 + 2 / 4 + 1 / 16) + C * C * HW  # 3x3 at strides 8, 16 and 32, and the 1x1
    project, match = C * C * HW, N * C * HW
    attention = 2 * N * C * C + 2 * N * S * C * C + 2 * N * S * C  # query and out; keys and values; the rest
    ffn, mlp = 2 * N * C * 8 * C, 4 * N * C * C
    costs = {"neck": neck, "matching": project + N * 768 * C + match}
    lcpa = project + attention + ffn + mlp + match
    return costs | {f"round {n + 1}": lcpa for n in range(config.rounds)}


def cells(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return -(-size[0] // stride), -(-size[1] // stride)


def shapes(config: ModelConfig) -> tuple[ImageEncoder, nn.Module]:
    """A configuration's encoders without weights; bert-base-uncased is known without its files."""
    with torch.device("meta"):
        encoder = build_image_encoder(config)
    if config.text.source != "bert-base-uncased":
        return encoder, TextEncoder.from_source(config.text.source, config.query, weights=False).bert.to(
            "meta"
        )
    with torch.device("meta"):
        return encoder, BertModel(BertConfig(), add_pooling_layer=False)


def table(rows: Sequence[Row]) -> str:
    """The parts side by side."""
    numbers = ("parameters", "ours", "released", "padded")
    rows = [*rows, Row("all", *(sum(getattr(row, name) for row in rows) for name in numbers))]
    lines = [f"{'part':<14} {'parameters':>11} {'ours':>10} {'released code':>14} {'as it runs':>11}"]
    for row in rows:
        theirs = [f"{cost / 1e9:.3f} G" if cost else "-" for cost in (row.released, row.padded)]
        ours = f"{row.parameters / 1e6:>9.2f} M {row.ours / 1e9:>8.3f} G"
        lines.append(f"{row.part:<14} {ours} {theirs[0]:>14} {theirs[1]:>11}")
    lines.append(
        f"as it runs: every caption padded to {RELEASED_ROWS} rows and {RELEASED_PIECES} word pieces"
    )
    return "\n".join(lines)


def claims() -> str:
    """What the paper says its two parts cost, beside what the released code multiplies and adds."""
    costs = released_head_costs(cells(CLAIMED_SIZE, 8), CLAIMED_ROWS)
    counted, rounds = {"matching": costs["matching"], "LCPA": costs["round 1"]}, ModelConfig().rounds
    where = f"{CLAIMED_SIZE[0]} x {CLAIMED_SIZE[1]} pixels with {CLAIMED_ROWS} rows"
    lines = [f"The paper's claims, and the multiply-adds of the released code at {where}:"]
    for part, claim in CLAIMS.items():
        lines.append(f"{part:<9} {claim / 1e9:.2f} GFLOPs claimed, {counted[part] / 1e9:.3f} G counted")
    lines.append(
        f"LCPA is one round of {rounds}, which together take {rounds * counted['LCPA'] / 1e9:.2f} G;"
    )
    lines.append(f"the neck, {costs['neck'] / 1e9:.1f} G, is left out of the claims.")
    return "\n".join(lines)
