"""The variant "paper" against the paper's equations, written out here in NumPy at double precision."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ppmn.config import ModelConfig
from ppmn.model.losses import ppm_losses, total_loss
from ppmn.model.network import Head, Maps
from ppmn.model.pyramid import Pyramid, ValidSizes
from ppmn.presets import paper

Array = NDArray[np.float64]
Weights = dict[str, Array]
C, CHANNELS_V, CHANNELS_R, D = 64, 32, 48, 8
GRIDS = {100: (10, 10), 200: (10, 20), 300: (15, 20), 12: (3, 4)}


def norm(x: Array, w: Weights, name: str) -> Array:
    """LN over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]
        + w[f"{name}.bias"]
    )


def group_norm(x: Array, w: Weights, name: str) -> Array:
    """GN with 32 groups of channels, over all pixels of one image (C, H, W)."""
    groups = x.reshape(32, -1)
    centred = groups - groups.mean(1, keepdims=True)
    normal = (centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)).reshape(x.shape)
    return normal * w[f"{name}.weight"][:, None, None] + w[f"{name}.bias"][:, None, None]


def linear(x: Array, w: Weights, name: str) -> Array:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def max_pool(H: Array, S: int) -> list[tuple[int, int]]:
    """The highest pixel of each cell of a grid, with more cells along the longer side."""
    height, width = H.shape
    few, many = GRIDS[S]
    rows, columns = (few, many) if width >= height else (many, few)
    best = []
    for i in range(rows):
        top, bottom = i * height // rows, -(-(i + 1) * height // rows)
        for j in range(columns):
            left, right = j * width // columns, -(-(j + 1) * width // columns)
            y, x = divmod(int(H[top:bottom, left:right].argmax()), right - left)
            best.append((top + y, left + x))
    return best


def mca(r: Array, pixels: Array, w: Weights, name: str) -> Array:
    q, k, v = (
        r @ w[f"{name}query.weight"].T,
        pixels @ w[f"{name}key.weight"].T,
        pixels @ w[f"{name}value.weight"].T,
    )
    heads = []
    for d in range(D):
        part = slice(d * C // D, (d + 1) * C // D)
        score = k[:, part] @ q[part] / math.sqrt(C)
        attention = np.exp(score - score.max())
        heads.append(attention / attention.sum() @ v[:, part])
    return np.concatenate(heads) + r


def mutan(r: Array, pixels: Array, w: Weights, name: str) -> Array:
    q, u = np.tanh(r @ w[f"{name}query.weight"].T), np.tanh(pixels.mean(0) @ w[f"{name}visual.weight"].T)
    fused = np.zeros(C)
    for k in range(10):
        rank = slice(k * C, (k + 1) * C)
        fused += (q @ w[f"{name}query_ranks.weight"][rank].T) * (u @ w[f"{name}visual_ranks.weight"][rank].T)
    return fused @ w[f"{name}out.weight"].T + r


def sk(r: Array, pixels: Array, w: Weights, name: str) -> Array:
    v = pixels.mean(0)
    a = 1 / (1 + np.exp(-((r * v) @ w[f"{name}weight.weight"].T)))
    return a * v + (1 - a) * r


AGGREGATE: dict[str, Callable[[Array, Array, Weights, str], Array]] = {"mca": mca, "mutan": mutan, "sk": sk}


def equations(F: Array, R: Array, w: Weights, config: ModelConfig) -> tuple[list[Array], list[Array]]:
    """Maps of every round and their pixels (N, S, 2) for one image's F (C_v, H, W) and phrases R (N, C_r)."""
    F_hat = np.einsum("vhw,cv->chw", F, w["project_pixels.0.conv.weight"][..., 0, 0])  # F W1
    R = R @ w["project_phrases.weight"].T  # R W2
    maps, chosen = [np.einsum("nc,chw->nhw", R, F_hat)], []
    for number in range(config.rounds):
        name = f"rounds.{number}."
        if config.pixels:
            index = np.array([max_pool(H, config.pixels) for H in maps[-1]])  # (N, S, 2)
            chosen.append(index)
            R = np.stack(
                [
                    AGGREGATE[config.aggregation](r, F_hat[:, i[:, 0], i[:, 1]].T, w, f"{name}aggregate.")
                    for r, i in zip(R, index, strict=True)
                ]
            )
        hidden = np.maximum(linear(norm(R, w, f"{name}norm1"), w, f"{name}ffn.0"), 0)
        R = norm(linear(hidden, w, f"{name}ffn.2"), w, f"{name}norm2") + R
        pixel = f"project_pixels.{number + 1}."
        F_hat = np.einsum("vhw,cv->chw", F, w[f"{pixel}conv.weight"][..., 0, 0])
        F_hat = np.maximum(group_norm(F_hat, w, f"{pixel}norm"), 0)
        query = R
        for layer in (0, 2, 4):
            query = np.maximum(linear(query, w, f"{name}mlp.{layer}"), 0)
        maps.append(np.einsum("nc,chw->nhw", linear(query, w, f"{name}mlp.6"), F_hat))
    return maps, chosen


def case(**changes: Any) -> tuple[Head, ModelConfig]:
    config = replace(paper().model, **{"channels": C, "rounds": 3, "pixels": 12, **changes})
    torch.manual_seed(3)
    head = Head(CHANNELS_V, CHANNELS_R, config).double()
    with torch.no_grad():
        for parameter in head.parameters():  # norms and biases too
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return head, config


def run(
    head: Head, sizes: list[tuple[int, int]], counts: list[int]
) -> tuple[Maps, torch.Tensor, torch.Tensor]:
    """Maps of a batch of images of different sizes, with the F and R that they came from."""
    height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
    p2, p3, p4, p5 = (
        torch.randn(len(sizes), CHANNELS_V, height * s, width * s, dtype=torch.float64) for s in (8, 4, 2, 1)
    )
    R, seen = torch.randn(sum(counts), CHANNELS_R, dtype=torch.float64), []
    handle = head.neck.register_forward_hook(lambda *args: seen.append(args[2]))
    with torch.no_grad():
        maps = head(Pyramid((p2, p3, p4, p5), ValidSizes(tuple(sizes), stride=8)), R, counts)
    handle.remove()
    return maps, seen[0], R


def check(head: Head, config: ModelConfig, sizes: list[tuple[int, int]], counts: list[int]) -> None:
    maps, F, R = run(head, sizes, counts)
    w = {name: tensor.numpy() for name, tensor in head.state_dict().items()}
    rows = R.split(counts)
    assert len(maps.H) == config.rounds + 1
    for b, (height, width) in enumerate((4 * h, 4 * v) for h, v in sizes):
        if not counts[b]:
            continue
        expected, chosen = equations(F[b, :, :height, :width].numpy(), rows[b].numpy(), w, config)
        for H, theirs in zip(maps.H, expected, strict=True):
            ours = H.split(counts)[b][:, :height, :width].numpy()
            assert np.abs(ours - theirs).max(initial=0) < 1e-9
        for indices, pixels in zip(maps.indices, chosen, strict=True):
            flat = indices.split(counts)[b].numpy()
            assert np.array_equal(
                np.stack([flat // F.shape[-1], flat % F.shape[-1]], -1), pixels.reshape(*flat.shape, 2)
            )


@pytest.mark.parametrize("aggregation", ["mca", "mutan", "sk"])
@pytest.mark.parametrize("S", [0, 12])
def test_rounds_equal_the_equations(aggregation: str, S: int) -> None:
    head, config = case(aggregation=aggregation, pixels=S)
    check(head, config, [(3, 5), (4, 2)], [3, 4])


@pytest.mark.parametrize("S", [100, 200, 300])
@pytest.mark.parametrize("sizes", [(4, 6), (6, 4), (2, 2)], ids=str)
def test_pixels_are_pooled_on_fixed_grids(S: int, sizes: tuple[int, int]) -> None:
    head, config = case(pixels=S, rounds=2)
    check(head, config, [sizes], [2])


@pytest.mark.parametrize("L", [0, 1, 4])
def test_any_number_of_rounds(L: int) -> None:
    head, config = case(rounds=L)
    check(head, config, [(3, 4)], [2])


def test_image_without_phrases() -> None:
    head, config = case()
    check(head, config, [(3, 4), (2, 2), (3, 3)], [2, 0, 1])


@pytest.mark.parametrize("aggregation", ["mca", "mutan", "sk"])
@pytest.mark.parametrize("variant, selection", [("paper", "maxpool"), ("released", "topk")])
def test_batch_without_phrases(variant: str, selection: str, aggregation: str) -> None:
    head, _ = case(variant=variant, selection=selection, aggregation=aggregation)
    maps, _, _ = run(head, [(3, 4)], [0])
    assert [tuple(H.shape) for H in maps.H] == [(0, 12, 16)] * 4


def test_loss_equals_the_equations() -> None:
    config = replace(paper().model, rounds=2)
    torch.manual_seed(0)
    maps = [torch.randn(3, 6, 7, dtype=torch.float64) for _ in range(3)]
    Y = (torch.rand(3, 6, 7) > 0.6).double()
    expected = 0.0
    for H in maps:
        M, y = 1 / (1 + np.exp(-H.numpy())), Y.numpy()
        expected -= (y * np.log(M) + (1 - y) * np.log(1 - M)).mean()
        expected += (1 - 2 * (M * y).sum((1, 2)) / (M.sum((1, 2)) + y.sum((1, 2)))).mean()
    assert total_loss(ppm_losses(maps, Y, config)).item() == pytest.approx(expected, abs=1e-12)
