"""Stage one read from files: features, boxes, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.stage_one import image_of, small_two_stage, write_stage_one

from ppmn.baselines.proposals import StageOne
from ppmn.baselines.two_stage import TwoStageConfig
from ppmn.errors import InputError
from ppmn.images import ids_to_rgb

IDS = np.array([[1, 1, 0, 2], [1, 3, 3, 2], [3, 3, 3, 3]], np.int32)
THINGS = (True, True, False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_stage_one(tmp_path, {7: (IDS, THINGS)})


@pytest.fixture
def config(text: Path) -> TwoStageConfig:
    return small_two_stage(text)[0].config


def test_regions_are_things_then_stuff(folder: Path, config: TwoStageConfig) -> None:
    proposals = StageOne(folder, config).read(image_of(IDS))
    things = torch.load(folder / "mask_features" / "7.pth", weights_only=True)
    stuff = torch.load(folder / "sem_seg_features" / "7.pth", weights_only=True)
    assert torch.equal(proposals.features[:2], things.flatten(1))
    cells = stuff[0].numpy()  # 6 x 10 averaged to 4 x 4: cells that do not divide overlap
    rows, columns = ((0, 2), (1, 3), (3, 5), (4, 6)), ((0, 3), (2, 5), (5, 8), (7, 10))
    pooled = [[cells[slice(*r), slice(*c)].mean() for c in columns] for r in rows]
    assert np.allclose(proposals.features[2].view(4, 4).numpy(), pooled, atol=1e-6)
    assert proposals.boxes.tolist() == [[0, 0, 1, 1], [3, 0, 0, 1], [0, 1, 3, 1]]  # x_max - x_min
    assert (proposals.mask([0, 2]) == np.isin(IDS, [1, 3])).all()


def test_the_released_sizes() -> None:
    config = TwoStageConfig()
    assert config.region_size == 256 * 14 * 14 == config.stuff_side**2
    assert config.stuff_side == 224


def test_an_image_without_regions_is_read(tmp_path: Path, config: TwoStageConfig) -> None:
    nothing = np.zeros((3, 4), np.int32)
    proposals = StageOne(write_stage_one(tmp_path, {7: (nothing, ())}), config).read(image_of(nothing))
    assert len(proposals) == 0 and proposals.boxes.shape == (0, 4)


def refused(folder: Path, config: TwoStageConfig, sentence: str, number: int = 7) -> None:
    with pytest.raises(InputError, match=sentence):
        StageOne(folder, config).read(image_of(IDS, number))


def test_another_image_size_is_refused(folder: Path, config: TwoStageConfig) -> None:
    file = folder / "panoptic_seg_predictions" / "000000000007.png"
    Image.fromarray(ids_to_rgb(IDS[:2])).save(file)
    refused(folder, config, r"000000000007.png has 2 x 4 pixels, but image 7 has 3 x 4")


def test_ids_beyond_255_are_refused(folder: Path, config: TwoStageConfig) -> None:
    file = folder / "panoptic_seg_predictions" / "000000000007.png"
    Image.fromarray(ids_to_rgb(np.where(IDS == 3, 256, IDS).astype(np.int32))).save(file)
    refused(folder, config, "holds the segment id 256; the limit is 255")
    Image.fromarray(ids_to_rgb(IDS)).save(file)
    content = json.loads((folder / "predictions.json").read_text())
    content["annotations"][0]["segments_info"][2]["id"] = 300
    (folder / "predictions.json").write_text(json.dumps(content))
    refused(folder, config, "hold the segment id 300; the limit is 255")


@pytest.mark.parametrize("kind", ["mask_features", "sem_seg_features"])
def test_missing_and_wrong_features_are_refused(folder: Path, config: TwoStageConfig, kind: str) -> None:
    file = folder / kind / "7.pth"
    whole = torch.load(file, weights_only=True)
    torch.save(torch.cat([whole, whole]), file)
    refused(folder, config, rf"{kind}/7.pth holds \({2 * len(whole)}, .*but image 7 has {len(whole)} such")
    torch.save(whole * torch.inf, file)
    refused(folder, config, "not finite")
    torch.save({"features": whole}, file)
    refused(folder, config, "holds dict")
    file.write_bytes(b"not a tensor")
    refused(folder, config, "cannot be read as a tensor")
    file.unlink()
    refused(folder, config, "the proposals of image 7 have no features: .* is missing")


def test_features_of_another_length_are_refused(folder: Path, config: TwoStageConfig) -> None:
    torch.save(torch.zeros(2, 8, 2, 2), folder / "mask_features" / "7.pth")
    refused(folder, config, "things of image 7 have 32 numbers; the network reads 16")
    torch.save(torch.zeros(2, 4, 2, 2), folder / "mask_features" / "7.pth")
    torch.save(torch.zeros(1, 16), folder / "sem_seg_features" / "7.pth")
    refused(folder, config, r"the stuff of image 7 has features \(1, 16\), not \(m, h, w\)")


def test_segments_that_do_not_fit_are_refused(tmp_path: Path, config: TwoStageConfig) -> None:
    refused(write_stage_one(tmp_path, {7: (IDS, (True, False))}), config, "list 2 segments and draw 3")
    refused(write_stage_one(tmp_path, {7: (IDS, (True, False, True))}), config, "stuff before a thing")
    content = json.loads((tmp_path / "predictions.json").read_text())
    content["annotations"][0]["segments_info"][0]["category_id"] = 5
    (tmp_path / "predictions.json").write_text(json.dumps(content))
    refused(tmp_path, config, "without id or known category")


def test_missing_images_and_folders_are_refused(folder: Path, config: TwoStageConfig) -> None:
    refused(folder, config, "has no proposals of image 8", number=8)
    (folder / "panoptic_seg_predictions" / "000000000007.png").unlink()
    refused(folder, config, "the proposals of image 7 have no map")
    (folder / "predictions.json").write_text("[]")
    refused(folder, config, "is not detectron2's panoptic predictions")
    (folder / "predictions.json").unlink()
    refused(folder, config, "is not the output of stage one")
