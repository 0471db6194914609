"""The counts of `ppmn profile` against measurements of the authors' code, and against a real run."""

from pathlib import Path

import pytest
import torch
from support.models import bert_folder, small_ppmn
from torch.utils.flop_counter import FlopCounterMode

from ppmn.cli import main
from ppmn.config import ModelConfig
from ppmn.model.folder import save_model
from ppmn.model.profile import PartCost, claims, encoders_without_weights, profile, released_head_costs

MEASURED = {  # of the authors' code at 800 x 1216, in G multiply-adds
    ("image encoder", 30): 202, ("text encoder", 30): 5.5, ("text encoder", 64): 20.5,
    ("neck", 30): 41.9, ("matching", 30): 1.119, ("matching", 64): 1.258,
    ("round 1", 30): 1.946, ("round 3", 64): 3.022,
}  # fmt: skip


@pytest.fixture(scope="module")
def costs() -> dict[str, PartCost]:
    config = ModelConfig()
    found = profile(config, *encoders_without_weights(config), (800, 1216), 30, 64)
    return {part.part: part for part in found.parts}


def test_released_code_costs_what_was_measured(costs: dict[str, PartCost]) -> None:
    for (part, n), cost in MEASURED.items():
        counted = costs[part].released if n == 30 else costs[part].padded
        assert counted / 1e9 == pytest.approx(cost, rel=0.02), part
    parameters = {part: cost.parameters / 1e6 for part, cost in costs.items()}
    head = sum(count for part, count in parameters.items() if not part.endswith("encoder"))
    assert head == pytest.approx(9.40, rel=0.02)
    assert parameters["round 2"] == pytest.approx(1.65, rel=0.02)
    assert parameters["text encoder"] == pytest.approx(252.0 - 142.5, rel=0.02)


def test_ours_costs_less_than_the_released_code(costs: dict[str, PartCost]) -> None:
    assert costs["image encoder"].ours == costs["image encoder"].released
    assert costs["matching"].ours == pytest.approx(costs["matching"].released, rel=1e-6)
    C, S, N = 256, 200, 30
    saved = 2 * N * S * C * C - 2 * N * C * C - 2 * N * S * C * 7  # absorbed projections, wider scores
    assert costs["round 1"].released - costs["round 1"].ours == pytest.approx(saved, rel=1e-3)
    assert costs["neck"].ours < 0.75 * costs["neck"].released


@pytest.mark.parametrize(
    "changes", [{}, {"rounds": 0}, {"pixels": 0}, {"variant": "paper", "selection": "maxpool"}], ids=str
)
def test_parts_add_up_to_a_real_run(tmp_path: Path, changes: dict[str, object]) -> None:
    model = small_ppmn(bert_folder(tmp_path), **changes)
    image, tokens = (
        torch.zeros(3, 64, 96, dtype=torch.uint8),
        model.text_encoder.tokenize("a red dog", [(2, 9)]),
    )
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.image_encoder([image])
        model.head(model.image_encoder([image]), model.text_encoder([tokens]).vectors, [2])
    meta = model.to("meta")
    found = profile(model.config, meta.image_encoder, meta.text_encoder.bert, (64, 96), 2, 5)
    once = {part.part: part.ours for part in found.parts}
    counted = sum(once.values()) + once["image encoder"]
    attention = once["text encoder"] * 0.1  # not counted on every processor
    assert 2 * counted == pytest.approx(counter.get_total_flops(), abs=2 * attention)


def test_claims_are_of_one_round_and_thirty_queries() -> None:
    costs = released_head_costs((100, 152), 30)
    assert costs["matching"] == pytest.approx(1.14e9, rel=0.02)
    assert costs["round 1"] == pytest.approx(2.03e9, rel=0.05)
    assert "1.119 G counted" in claims()
    assert "5.84 G" in claims()


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["profile", "--size", "64x96", "--phrases", "3", "--preset", "paper"]) == 0
    said = capsys.readouterr().out
    assert "round 3" in said
    assert "2.03 GFLOPs claimed, 1.946 G counted" in said
    save_model(small_ppmn(bert_folder(tmp_path / "bert"), rounds=1), tmp_path / "model")
    assert main(["profile", "--model", str(tmp_path / "model"), "--size", "64x96"]) == 0
    said = capsys.readouterr().out
    assert "round 1" in said
    assert "round 2" not in said
    assert main(["profile", "--pieces", "1000"]) == 2
    assert "512" in capsys.readouterr().err
    assert main(["profile", "--phrases", "0"]) == 2
    assert main(["profile", "--preset", "scenes"]) == 0
    with pytest.raises(SystemExit):
        main(["profile", "--size", "800"])


@pytest.mark.parametrize("model", [["--model", "compact"], ["--preset", "compact"]], ids=str)
def test_size_is_rounded_to_what_the_encoder_accepts(
    capsys: pytest.CaptureFixture[str], model: list[str]
) -> None:
    assert main(["profile", *model, "--size", "600x800"]) == 0
    assert "588 x 812 pixels" in capsys.readouterr().out
    assert main(["profile", *model]) == 0
    assert "812 x 1204 pixels" in capsys.readouterr().out
