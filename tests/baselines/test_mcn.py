"""The small MCN: its formulas in NumPy, a batch against its phrases, what can be left out, suppression."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.precision import uses_bfloat16
from torch import Tensor

from ppmn.baselines.mcn import MCN, ConsistencyEnergy, MCNConfig
from ppmn.baselines.mcn_losses import (
    SEGMENTATION_WEIGHT,
    best_boxes,
    box_loss,
    decode_boxes,
    mcn_loss,
    suppress,
)
from ppmn.baselines.mcn_parts import GARAN, ExpressionEncoder
from ppmn.errors import InputError

Array = NDArray[np.float64]
SMALL: dict[str, Any] = {"visual": 8, "language": 12, "words": 10}
H, W = 2, 3  # of F1


def numbers(module: torch.nn.Module) -> dict[str, Array]:
    return {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def inputs(batch: int, **changes: Any) -> tuple[MCN, list[Tensor]]:
    torch.manual_seed(2)
    model = MCN(MCNConfig(**{**SMALL, **changes})).double()
    levels = [torch.randn(batch, 8, scale * H, scale * W).double() for scale in (1, 2, 4)]
    lengths = torch.tensor([4, 1, 3][:batch])
    return model, [*levels, torch.randn(batch, 4, 10).double(), lengths]


def truths(batch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    masks = (torch.rand(batch, 4 * H, 4 * W, generator=generator) > 0.5).double()
    sides = 0.1 + 0.4 * torch.rand(batch, 2, generator=generator).double()
    centres = 0.3 + 0.4 * torch.rand(batch, 2, generator=generator).double()
    return masks, torch.cat([centres, sides], 1)


def test_garan_equals_its_formulas() -> None:
    torch.manual_seed(0)
    garan = GARAN(8, 12).double().eval()
    F, f_q = torch.randn(1, 8, H, W).double(), torch.randn(1, 12).double()
    out, F_att = garan(F, f_q)
    w, pixels = numbers(garan), F[0].flatten(1).T.numpy()  # (h w, C)
    halves = []
    for x, language in zip(np.split(pixels, 2, 1), np.split(f_q[0].numpy(), 2), strict=True):
        q = w["query.weight"] @ language + w["query.bias"]
        K_c, V, K_d = (
            x @ w[f"{name}.weight"].T + w[f"{name}.bias"] for name in ("collect_key", "value", "diffuse_key")
        )
        g = softmax(K_c @ q / math.sqrt(8), 0) @ V
        halves.append(np.outer(sigmoid(K_d @ q / math.sqrt(8)), g))
    expected = np.concatenate(halves, 1)
    assert np.abs(F_att[0].detach().flatten(1).T.numpy() - expected).max() < 1e-12
    plain = (pixels + expected) / math.sqrt(1 + 1e-5)  # batch norm with its first statistics
    assert (
        np.abs(out[0].detach().flatten(1).T.numpy() - np.where(plain > 0, plain, 0.1 * plain)).max() < 1e-12
    )


def test_energy_equals_its_formula() -> None:
    torch.manual_seed(0)
    cem = ConsistencyEnergy(8).double()
    F_as, F_ac = torch.randn(1, 8, 4 * H, 4 * W).double(), torch.randn(1, 8, H, W).double()
    w, a, c = numbers(cem), F_as[0].flatten(1).T.numpy(), F_ac[0].flatten(1).T.numpy()
    s = softmax(a @ w["segmentation.weight"][0, :, 0, 0] + w["segmentation.bias"], 0)
    d = softmax(c @ w["comprehension.weight"][0, :, 0, 0] + w["comprehension.bias"], 0)
    cosine = a @ c.T / np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(c, axis=1))
    assert cem(F_as, F_ac).item() == pytest.approx(s @ ((cosine + 1) / 2) @ d, abs=1e-12)


@uses_bfloat16
def test_energy_and_loss_are_in_single_precision_under_autocast() -> None:
    model, (F1, F2, F3, words, lengths) = inputs(3)
    model, levels = model.float().eval(), [x.float() for x in (F1, F2, F3, words)]
    with torch.autocast("cpu", torch.bfloat16):
        output = model(*levels, lengths)
    assert output.energy is not None and output.energy.dtype == torch.float32
    rows, columns = (torch.randn(3, 8, *size) for size in ((8, 12), (2, 3)))
    with torch.autocast("cpu", torch.bfloat16):
        energy = model.cem(rows, columns)
    assert torch.equal(energy, model.cem(rows, columns))
    masks, boxes = (t.float() for t in truths(3))
    loss = mcn_loss(output.float(), masks, boxes, model.config)
    assert loss.dtype == torch.float32 and loss.isfinite()


def test_the_expression_is_attended_channel_by_channel() -> None:
    torch.manual_seed(0)
    encoder = ExpressionEncoder(10, 6, dropout=0.0).double()
    words = torch.randn(1, 4, 10).double()
    both = encoder.gru(words)[0][0].detach().numpy()
    h = both[:, :6] + both[:, 6:]
    w = numbers(encoder)
    weights = softmax(np.tanh(h @ w["attention.weight"].T + w["attention.bias"]), 0)
    f_q = encoder(words, torch.tensor([4]))[0].detach().numpy()
    assert np.abs(f_q - (weights * h).sum(0)).max() < 1e-12
    padded = torch.cat([words, 9 * torch.ones(1, 3, 10)], 1)
    assert np.abs(encoder(padded, torch.tensor([4]))[0].detach().numpy() - f_q).max() < 1e-12


def test_a_batch_equals_its_phrases() -> None:
    model, batch = inputs(3)
    model.eval()
    with torch.no_grad():
        together = model(*batch)
        assert together.mask.shape == (3, 4 * H, 4 * W)
        assert together.boxes.shape == (3, 3, 5, H, W) and together.energy.shape == (3,)
        for b in range(3):
            alone = model(*(tensor[b : b + 1] for tensor in batch))
            for name in ("mask", "boxes", "energy"):
                assert torch.allclose(getattr(together, name)[b], getattr(alone, name)[0], atol=1e-10)
    assert ((together.energy > 0) & (together.energy < 1)).all()


@pytest.mark.parametrize("changes", [{}, {"consistency": False}, {"box_branch": False}], ids=str)
def test_every_part_is_trained(changes: dict[str, bool]) -> None:
    model, batch = inputs(3, **changes)
    output = model(*batch)
    assert (output.boxes is None) == ("box_branch" in changes)
    assert (output.energy is None) == bool(changes)
    masks, boxes = truths(3)
    mcn_loss(output, masks, boxes, model.config).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def iou(a: Array, b: Array) -> float:
    low = np.maximum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2)
    high = np.minimum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2)
    both = np.prod(np.maximum(high - low, 0))
    return float(both / (np.prod(a[2:]) + np.prod(b[2:]) - both))


def bce(logit: float, target: float) -> float:
    p = 1 / (1 + math.exp(-logit))
    return -(target * math.log(p) + (1 - target) * math.log(1 - p))


def test_box_loss_equals_its_formula() -> None:
    config = MCNConfig(**SMALL)
    torch.manual_seed(5)
    raw, true = torch.randn(2, 3, 5, H, W).double(), truths(2)[1]
    anchors = np.array(config.anchors)
    column, row = int(true[0, 0] * W), int(true[0, 1] * H)  # here all anchors predict the true box
    raw[0, :, 0:2, row, column] = torch.logit(true[0, :2] * torch.tensor([W, H]) % 1)
    raw[0, :, 2:4, row, column] = torch.log(true[0, 2:] / torch.tensor(anchors))
    decoded, expected, ignored = decode_boxes(raw, config).numpy(), 0.0, 0
    for b, box in enumerate(true.numpy()):
        centre = np.zeros(2)
        best = int(np.argmax([iou(np.r_[centre, a], np.r_[centre, box[2:]]) for a in anchors]))
        column, row = int(box[0] * W), int(box[1] * H)
        weight = 2 - box[2] * box[3]
        own = raw[b, best, :, row, column].numpy()
        expected += weight * (bce(own[0], box[0] * W - column) + bce(own[1], box[1] * H - row))
        for side in (0, 1):
            d = abs(own[2 + side] - math.log(box[2 + side] / anchors[best, side]))
            expected += 0.5 * weight * (4.5 * d * d if d < 1 / 9 else d - 1 / 18)
        for place in np.ndindex(3, H, W):
            positive = place == (best, row, column)
            n, i, j = place
            here = raw[b, n, :, i, j].numpy()
            middle = (np.array([j, i]) + sigmoid(here[:2])) / np.array([W, H])
            predicted = np.r_[middle, anchors[n] * np.exp(here[2:4])]
            assert np.allclose(decoded[b, n, :, i, j], predicted)
            if positive or iou(predicted, box) < 0.5:
                expected += bce(here[4], float(positive))
            else:
                ignored += 1
    assert box_loss(raw, true, config).item() == pytest.approx(expected, abs=1e-9)
    assert ignored == 2


def test_the_whole_loss() -> None:
    model, batch = inputs(3)
    output, (masks, boxes) = model.eval()(*batch), truths(3)
    valid = torch.ones_like(masks)
    valid[1, :3] = 0
    cells = torch.nn.functional.binary_cross_entropy_with_logits(output.mask, masks, reduction="none")
    segmentation = np.mean([cells[b][valid[b] == 1].mean().item() for b in range(3)])
    expected = SEGMENTATION_WEIGHT * segmentation + box_loss(output.boxes, boxes, model.config).item() / 3
    expected -= torch.log(output.energy + 1e-6).mean().item()
    assert mcn_loss(output, masks, boxes, model.config, valid).item() == pytest.approx(expected, abs=1e-9)
    for wrong in (boxes[:2], boxes * 400, torch.zeros_like(boxes)):
        with pytest.raises(InputError, match="one box of x, y, width, height in fractions"):
            mcn_loss(output, masks, wrong, model.config)


def test_suppression_by_the_best_box() -> None:
    config = MCNConfig(**SMALL)
    raw = torch.full((1, 3, 5, H, W), -20.0)
    raw[0, 1, :, 1, 2] = torch.tensor([0.0, 0.0, math.log(0.5), math.log(0.5), 1.0])
    boxes, p = best_boxes(raw, config)
    assert torch.allclose(boxes, torch.tensor([[2.5 / 3, 0.75, 0.3, 0.325]]))
    assert p.item() == pytest.approx(1 / (1 + math.exp(-1)))
    responses = torch.full((1, 40, 60), 0.4)
    centre, corner = (0, 30, 50), (0, 0, 0)
    adaptive = suppress(responses, boxes, p)
    assert adaptive[centre].item() == pytest.approx(0.4 * (2 - p.item()))
    assert adaptive[corner].item() == pytest.approx(0.4 * p.item())
    hard = suppress(responses, boxes, p, kind="hard")
    assert hard[centre].item() == pytest.approx(0.4) and hard[corner] == 0
    assert (hard > 0).sum().item() == pytest.approx(0.3 * 60 * 0.325 * 40, rel=0.15)
    assert torch.equal(suppress(responses, boxes, p, kind="none"), responses)


@pytest.mark.parametrize(
    "change, sentence",
    [({"visual": 7}, "visual is 7"), ({"anchors": ((137, 256), (248, 272), (386, 271))}, "fractions")],
)
def test_bad_configurations_of_mcn_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        MCNConfig(**change)
