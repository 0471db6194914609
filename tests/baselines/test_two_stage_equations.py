"""The second stage against its equations, written out here in NumPy at double precision."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import erf
from support.stage_one import REGION_SIZE, small_two_stage

from ppmn.baselines.two_stage import TwoStage, matching_loss, phrase_scores

Array = NDArray[np.float64]
Weights = dict[str, Array]
HEADS = 4


def norm(x: Array, w: Weights, name: str) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return centred / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x: Array, w: Weights, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def attention(x: Array, context: Array, w: Weights, name: str, valid: NDArray[np.bool_]) -> Array:
    """One head after the other; keys that are not valid take no part."""
    q, k, v = (linear(y, w, f"{name}.{n}") for y, n in ((x, "query"), (context, "key"), (context, "value")))
    heads = []
    for q_h, k_h, v_h in zip(*(np.split(y, HEADS, -1) for y in (q, k, v)), strict=True):
        weights = np.exp(q_h @ k_h.T / math.sqrt(q_h.shape[1])) * valid
        heads.append(weights / weights.sum(1, keepdims=True) @ v_h)
    return np.concatenate(heads, -1)


def residual(h: Array, x: Array, w: Weights, name: str) -> Array:
    return norm(x + linear(h, w, f"{name}.dense"), w, f"{name}.LayerNorm")


def gelu(x: Array) -> Array:
    return x * (1 + erf(x / math.sqrt(2))) / 2


def bert_layer(x: Array, w: Weights, name: str, valid: NDArray[np.bool_]) -> Array:
    x = residual(attention(x, x, w, f"{name}.attention.self", valid), x, w, f"{name}.attention.output")
    return residual(gelu(linear(x, w, f"{name}.intermediate.dense")), x, w, f"{name}.output")


def cross_layer(
    L: Array, V: Array, w: Weights, name: str, words: NDArray[np.bool_], regions: NDArray[np.bool_]
) -> tuple[Array, Array]:
    shared = f"{name}.visual_attention"
    L_cross = residual(attention(L, V, w, f"{shared}.att", regions), L, w, f"{shared}.output")
    V_cross = residual(attention(V, L, w, f"{shared}.att", words), V, w, f"{shared}.output")
    sides = []
    for x, side, valid in ((L_cross, "lang", words), (V_cross, "visn", regions)):
        own = f"{name}.{side}_self_att"
        y = residual(attention(x, x, w, f"{own}.self", valid), x, w, f"{own}.output")
        sides.append(
            residual(gelu(linear(y, w, f"{name}.{side}_inter.dense")), y, w, f"{name}.{side}_output")
        )
    return sides[0], sides[1]


def equations(
    model: TwoStage,
    ids: NDArray[np.int64],
    words: NDArray[np.bool_],
    f: Array,
    box: Array,
    regions: NDArray[np.bool_],
) -> Array:
    """The affinity (T, P) of one narrative."""
    w = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    table = "embeddings.{}_embeddings.weight"
    L = w[table.format("word")][ids] + w[table.format("position")][: len(ids)]
    L = norm(L + w[table.format("token_type")][0], w, "embeddings.LayerNorm")
    fc = "encoder.visn_fc"
    V = norm(linear(f, w, f"{fc}.visn_fc"), w, f"{fc}.visn_layer_norm")
    V = (V + norm(linear(box, w, f"{fc}.box_fc"), w, f"{fc}.box_layer_norm")) / 2
    if not model.config.mask_regions:
        regions = np.ones_like(regions)
    for n in range(model.config.language_layers):
        L = bert_layer(L, w, f"encoder.layer.{n}", words)
    for n in range(model.config.region_layers):
        V = bert_layer(V, w, f"encoder.single_layers.{n}", regions)
    for n in range(model.config.cross_layers):
        L, V = cross_layer(L, V, w, f"encoder.cross_layers.{n}", words, regions)
    return L @ V.T


@pytest.mark.parametrize("mask_regions", [True, False])
def test_affinity_and_scores_equal_the_equations(text: Path, mask_regions: bool) -> None:
    model = small_two_stage(text, mask_regions=mask_regions)[0].double()
    T, P, n = 9, 5, 3
    ids = torch.randint(0, model.config.vocabulary, (2, T))
    words = torch.arange(T) < torch.tensor([[9], [6]])
    regions = torch.arange(P) < torch.tensor([[3], [5]])
    f, box = torch.randn(2, P, REGION_SIZE).double(), 100 * torch.rand(2, P, 4).double()
    N = (torch.rand(2, T, n) > 0.5).double() * words[..., None]
    N[:, :, 2] = 0  # an empty slot
    with torch.no_grad():
        A = model(ids, words, f, box, regions)
        S = phrase_scores(A, N)
    assert A.shape == (2, T, P) and S.shape == (2, n, P)
    for b in range(2):
        inputs = [tensor[b].numpy() for tensor in (ids, words, f, box, regions)]
        expected = equations(model, *inputs)
        own_words, own_regions = words[b].numpy(), regions[b].numpy()
        assert np.abs(A[b].numpy() - expected)[own_words][:, own_regions].max() < 1e-9
        rows = N[b].numpy()
        averaged = rows.T @ expected / (rows.sum(0)[:, None] + 1e-7)
        assert np.abs(S[b].numpy() - averaged)[:, own_regions].max() < 1e-9
        assert (S[b, 2] == 0).all()


def test_loss_equals_the_equations() -> None:
    torch.manual_seed(0)
    S, Y = torch.randn(2, 3, 4).double(), (torch.rand(2, 3, 4) > 0.7).double()
    S[:, 2], Y[:, 2] = 0, 0  # an empty slot adds ln 2 per cell
    S.requires_grad_()
    p = 1 / (1 + np.exp(-S.detach().numpy()))
    cells = -(Y.numpy() * np.log(p) + (1 - Y.numpy()) * np.log(1 - p))
    assert np.allclose(cells[:, 2], math.log(2))
    assert matching_loss(S, Y).item() == pytest.approx(cells.mean(), abs=1e-12)
    valid = torch.rand(2, 3, 4) > 0.4
    assert matching_loss(S, Y, valid).item() == pytest.approx(cells[valid.numpy()].mean(), abs=1e-12)
    none = torch.zeros_like(valid)
    assert matching_loss(S, Y, none).item() == 0
