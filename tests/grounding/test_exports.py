"""Exports for other tools, read back: each holds the masks of the phrases.

COCO is read by pycocotools; COCO, YOLO and LabelMe files by supervision; Label Studio's by its own
converter. The readers of two tools are too heavy for a test. LabelMe's own package imports Qt, whose PyQt5
takes 60 MB to download. CVAT reads its files with datumaro, which brings OpenCV (60 to 70 MB), and whose
newest version excludes the Pillow and pandas that the tests run with; the light packages that read CVAT's
files (labelformat, globox) know boxes and no polygons. So a CVAT file is read by the standard library
alone.
"""

import base64
import io
import json
import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from support.grounding import drawn
from support.polygons import filled, iou

import ppmn
from ppmn.cli.ground import FORMATS
from ppmn.errors import InputError
from ppmn.grounding.formats import OUTPUT_FORMATS
from ppmn.grounding.result import Grounding

CAPTION = "[a dog] and [the Cat] and [a dog] on [grass <&> \x07]"
WIDTH, HEIGHT = 300, 200


@pytest.fixture
def found() -> Grounding:
    """Four phrases, two of them of the same words, with masks of more than 500 pixels."""
    grounding = drawn(CAPTION, WIDTH, HEIGHT, threshold=0.3)
    assert all(phrase.area > 500 for phrase in grounding)
    return grounding


def assert_masks_of(parts: dict[int, list[np.ndarray]], found: Grounding) -> None:
    """The polygons of each phrase, by its number, cover its mask."""
    assert set(parts) == set(range(1, len(found) + 1))
    for number, phrase in enumerate(found, 1):
        assert iou(filled(parts[number], (HEIGHT, WIDTH)), phrase.mask) >= 0.95


def test_coco_polygons_are_read_by_pycocotools_and_supervision(found: Grounding, tmp_path: Path) -> None:
    supervision = pytest.importorskip("supervision")
    (file,) = ppmn.save(found, tmp_path, formats=["polygons"])
    coco = COCO(file)
    for annotation, phrase in zip(coco.loadAnns(coco.getAnnIds()), found, strict=True):
        assert iou(coco.annToMask(annotation).astype(bool), phrase.mask) >= 0.95
    found.image.save(tmp_path / "photo.png")
    ((_, _, read),) = supervision.DetectionDataset.from_coco(str(tmp_path), str(file), force_masks=True)
    assert all(iou(mask, phrase.mask) >= 0.95 for mask, phrase in zip(read.mask, found, strict=True))


def test_yolo_labels_are_read_by_supervision(found: Grounding, tmp_path: Path) -> None:
    supervision = pytest.importorskip("supervision")
    labels, table = ppmn.save(found, tmp_path, formats=["yolo"])
    images = tmp_path / "yolo" / "images"
    images.mkdir()
    found.image.save(images / "photo.png")
    data = supervision.DetectionDataset.from_yolo(
        str(images), str(labels.parent), str(table), force_masks=True
    )
    ((_, _, read),) = data
    assert data.classes[:2] == ["a dog", "the cat"]
    assert [data.classes[number] for number in read.class_id] == [p.text.lower() for p in found]
    assert all(iou(mask, phrase.mask) >= 0.95 for mask, phrase in zip(read.mask, found, strict=True))
    values = np.array([line.split()[1:3] for line in labels.read_text().splitlines()], float)
    assert (values >= 0).all() and (values <= 1).all()


def test_yolo_takes_the_classes_of_a_data_set() -> None:
    found = drawn("[a dog] and [the Cat]", WIDTH, HEIGHT)
    lines = ppmn.to_yolo(found, classes=["bird", "the cat", "a dog"]).splitlines()
    assert [line.split()[0] for line in lines] == ["2", "1"]
    with pytest.raises(InputError, match="a dog is not among the classes"):
        ppmn.to_yolo(found, classes=["bird"])


def test_labelme_file(found: Grounding, tmp_path: Path) -> None:
    (file,) = ppmn.save(found, tmp_path, formats=["labelme"])
    content = json.loads(file.read_text())
    keys = {"version", "flags", "shapes", "imagePath", "imageData", "imageHeight", "imageWidth"}
    assert set(content) == keys and content["imagePath"] == "photo.png"
    with Image.open(io.BytesIO(base64.b64decode(content["imageData"]))) as image:
        assert image.size == (content["imageWidth"], content["imageHeight"]) == (WIDTH, HEIGHT)
    parts = defaultdict(list)
    for shape in content["shapes"]:
        assert set(shape) == {"label", "points", "group_id", "description", "shape_type", "flags", "mask"}
        assert (
            shape["shape_type"] == "polygon" and shape["label"] == found[shape["group_id"] - 1].text.lower()
        )
        parts[shape["group_id"]].append(shape["points"])
    assert_masks_of(parts, found)


def test_labelme_file_is_read_by_supervision(found: Grounding, tmp_path: Path) -> None:
    supervision = pytest.importorskip("supervision")
    (file,) = ppmn.save(found, tmp_path, formats=["labelme"])
    images = tmp_path / "images"
    images.mkdir()
    found.image.save(images / "photo.png")
    data = supervision.DetectionDataset.from_labelme(str(images), str(file.parent), force_masks=True)
    ((_, _, read),) = data
    assert [data.classes[number] for number in read.class_id] == [p.text.lower() for p in found]
    assert all(iou(mask, phrase.mask) >= 0.95 for mask, phrase in zip(read.mask, found, strict=True))


def test_label_studio_converts_the_accepted_predictions(found: Grounding, tmp_path: Path) -> None:
    converter = pytest.importorskip("label_studio_converter")
    file, interface = ppmn.save(found, tmp_path, formats=["labelstudio"])
    (task,) = json.loads(file.read_text())
    (prediction,) = task.pop("predictions")
    accepted = (
        tmp_path / "accepted.json"
    )  # as Label Studio writes it once a person has accepted the predictions
    annotation = {"id": 1, "result": prediction["result"]}
    accepted.write_text(json.dumps([task | {"id": 1, "annotations": [annotation]}]))
    reader = converter.Converter(interface.read_text(), str(tmp_path), download_resources=False)
    reader.convert_to_coco(str(accepted), str(tmp_path / "coco"), is_dir=False)
    coco = COCO(tmp_path / "coco" / "result.json")
    (image,) = coco.loadImgs(coco.getImgIds())
    assert (image["width"], image["height"]) == (WIDTH, HEIGHT)
    parts = defaultdict(list)
    for region, read in zip(prediction["result"], coco.loadAnns(coco.getAnnIds()), strict=True):
        (label,) = region["value"]["polygonlabels"]
        assert coco.loadCats(read["category_id"])[0]["name"] == label
        (ring,) = read["segmentation"]
        parts[int(re.fullmatch(r"phrase(\d+)part\d+", region["id"])[1])].append(np.reshape(ring, (-1, 2)))  # type: ignore[index]
    assert_masks_of(parts, found)


def test_label_studio_task_and_interface(found: Grounding, tmp_path: Path) -> None:
    file, interface = ppmn.save(found, tmp_path, formats=["labelstudio"])
    (task,) = json.loads(file.read_text())
    view = ElementTree.fromstring(interface.read_text())
    assert "<?xml" not in interface.read_text()  # label_studio_sdk refuses a declaration
    assert task["data"]["image"] == "/data/local-files/?d=photo.png"
    assert ppmn.to_label_studio(found, image_url="https://a/b.png")["data"]["image"] == "https://a/b.png"
    (prediction,) = task["predictions"]
    parts = defaultdict(list)
    for region in prediction["result"]:
        control = view.find(f".//PolygonLabels[@name='{region['from_name']}']")
        assert control is not None and control.get("toName") == region["to_name"] == "image"
        (label,) = region["value"]["polygonlabels"]
        assert label in {element.get("value") for element in control}
        number = int(re.fullmatch(r"phrase(\d+)part\d+", region["id"])[1])  # type: ignore[index]
        size = (region["original_width"] / 100, region["original_height"] / 100)
        parts[number].append(np.array(region["value"]["points"]) * size)
    assert_masks_of(parts, found)


def test_cvat_file(found: Grounding, tmp_path: Path) -> None:
    (file,) = ppmn.save(found, tmp_path, formats=["cvat"])
    root = ElementTree.fromstring(file.read_text())
    image = root.find("image")
    assert root.findtext("version") == "1.1" and image is not None
    assert (image.get("name"), image.get("width"), image.get("height")) == ("photo.png", "300", "200")
    names = [label.findtext("name") for label in root.iter("label")]
    parts = defaultdict(list)
    for polygon in image.iter("polygon"):
        assert polygon.get("label") in names
        points = [point.split(",") for point in polygon.get("points", "").split(";")]
        parts[int(polygon.get("group_id", ""))].append(np.array(points, float))
    assert_masks_of(parts, found)


def test_cut_outs_are_transparent_outside_of_the_mask(found: Grounding, tmp_path: Path) -> None:
    files = ppmn.save(found, tmp_path, formats=["cutouts"])
    assert [file.name for file in files][:2] == ["001_a-dog.png", "002_the-cat.png"]
    for file, phrase in zip(files, found, strict=True):
        x, y, w, h = phrase.box or (0, 0, 0, 0)
        with Image.open(file) as piece:
            assert piece.mode == "RGBA" and piece.size == (w, h)
            pixels = np.asarray(piece)
        np.testing.assert_array_equal(pixels[..., 3] == 255, phrase.mask[y : y + h, x : x + w])
        assert set(np.unique(pixels[..., 3])) <= {0, 255}
        np.testing.assert_array_equal(pixels[..., :3], np.asarray(found.image)[y : y + h, x : x + w])


def test_contact_sheet_shows_the_image_and_every_mask(found: Grounding) -> None:
    sheet = np.asarray(ppmn.contact_sheet(found, columns=5, tile_side=150))
    image = np.asarray(found.image.resize((150, 100), Image.Resampling.BILINEAR, reducing_gap=2.0))
    tiles = [sheet[10:110, 10 + 160 * n : 160 + 160 * n] for n in range(5)]
    np.testing.assert_array_equal(tiles[0], image)
    for tile, phrase in zip(tiles[1:], found, strict=True):
        small = phrase.geometry.resized(100, 150).mask(phrase.map, phrase.threshold)
        np.testing.assert_array_equal((tile != image).any(-1) & ~small, False)
        assert (tile != image).any(-1)[small].mean() > 0.9
    titles = sheet[110:132]
    assert all((titles[:, 10 + 160 * n : 160 + 160 * n] < 128).any() for n in range(5))


def test_every_format_writes_a_phrase_without_a_mask(tmp_path: Path) -> None:
    found = drawn("[a dog] and [a cat]", 40, 30, threshold=1.0)
    formats = [name for name in OUTPUT_FORMATS if name != "rounds"]
    assert all(file.is_file() for file in ppmn.save(found, tmp_path, formats=formats))
    content = json.loads((tmp_path / "polygons.json").read_text())
    assert content["annotations"] == [] and content["info"]["empty"] == ["a dog", "a cat"]
    assert not list(tmp_path.glob("cutouts/*")) and len(COCO(tmp_path / "polygons.json").imgs) == 1


def test_command_line_lists_every_format() -> None:
    assert tuple(FORMATS.split(", ")) == OUTPUT_FORMATS
