"""A grounding in the files of annotation tools: YOLO, LabelMe, Label Studio and CVAT, all with polygons.

Each connected part of a mask is a polygon of its own (see `mask_polygons`), so a phrase may have several; one
whose mask is empty has none.
"""

import base64
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np

from ppmn.errors import InputError
from ppmn.grounding.coco import category_ids, image_file_name
from ppmn.grounding.polygons import mask_polygons
from ppmn.grounding.render import PALETTE
from ppmn.grounding.result import Grounding
from ppmn.images import encode_image_file

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_yolo(grounding: Grounding, *, classes: Sequence[str] | None = None) -> str:
    """The labels of one image for YOLO segmentation: one line per polygon, coordinates from 0 to 1.

    Args:
        grounding: What `Grounder.ground` returns.
        classes: The class names of the data set in their order, in lower case; by default the distinct
            phrases of this caption.

    Returns:
        Lines of a class number, from 0, and the x and y of each point.

    Raises:
        InputError: A phrase is not among the classes.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "[sky]", threshold=0)
        >>> ppmn.to_yolo(grounding, classes=["tree", "sky"]).split()[0]
        '1'
    """
    numbers = {name: number for number, name in enumerate(classes or category_ids(grounding))}
    size = (grounding.image.width, grounding.image.height)
    lines = []
    for phrase in grounding:
        name = phrase.text.lower()
        if name not in numbers:
            raise InputError(f"the phrase {name} is not among the classes: {', '.join(numbers)}")
        for polygon in mask_polygons(phrase.mask):
            values = " ".join(f"{value:.6f}" for value in (polygon / size).ravel())
            lines.append(f"{numbers[name]} {values}\n")
    return "".join(lines)


def to_labelme(grounding: Grounding) -> dict[str, Any]:
    """A LabelMe file with the image in it; the polygons of a phrase have its number as their group.

    Args:
        grounding: What `Grounder.ground` returns.

    Returns:
        The content of the file, ready for `json.dump`.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "[sky]", threshold=0)
        >>> ppmn.to_labelme(grounding)["shapes"][0]["label"]
        'sky'
    """
    shapes = [
        {
            "label": phrase.text.lower(),
            "points": polygon.tolist(),
            "group_id": number,
            "description": f"score {phrase.score:.4f}",
            "shape_type": "polygon",
            "flags": {},
            "mask": None,
        }
        for number, phrase in enumerate(grounding, 1)
        for polygon in mask_polygons(phrase.mask)
    ]
    jpeg = encode_image_file(grounding.image, "JPEG", quality=95)
    return {
        "version": "5.5.0",
        "flags": {},
        "shapes": shapes,
        "imagePath": image_file_name(grounding),
        "imageData": base64.b64encode(jpeg).decode("ascii"),
        "imageHeight": grounding.image.height,
        "imageWidth": grounding.image.width,
    }


def to_label_studio(grounding: Grounding, *, image_url: str | None = None) -> dict[str, Any]:
    """A task for Label Studio with the polygons as predictions; an import file is a list of tasks.

    Args:
        grounding: What `Grounder.ground` returns.
        image_url: Where Label Studio finds the image; by default its file name in the local storage.

    Returns:
        The task, ready for `json.dump`.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "[sky]", threshold=0)
        >>> ppmn.to_label_studio(grounding)["predictions"][0]["result"][0]["value"]["polygonlabels"]
        ['sky']
    """
    width, height = grounding.image.size
    result = [
        {
            "id": f"phrase{number}part{part}",
            "type": "polygonlabels",
            "from_name": "label",
            "to_name": "image",
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "score": round(phrase.score, 4),
            "value": {
                "points": (polygon * (100 / width, 100 / height)).tolist(),  # percent
                "closed": True,
                "polygonlabels": [_xml_text(phrase.text.lower())],  # as in `label_config`
            },
        }
        for number, phrase in enumerate(grounding, 1)
        for part, polygon in enumerate(mask_polygons(phrase.mask), 1)
    ]
    url = image_url or f"/data/local-files/?d={quote(image_file_name(grounding))}"
    score = float(np.mean([phrase.score for phrase in grounding]))
    prediction = {"model_version": grounding.model, "score": round(score, 4), "result": result}
    return {"data": {"image": url, "caption": grounding.caption}, "predictions": [prediction]}


def label_config(grounding: Grounding) -> str:
    """The labelling interface of a Label Studio project for the phrases of a grounding, as XML."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Text", name="caption", value="$caption")
    ElementTree.SubElement(view, "Image", name="image", value="$image", zoom="true")
    labels = ElementTree.SubElement(view, "PolygonLabels", name="label", toName="image")
    for number, name in enumerate(category_ids(grounding)):
        color = PALETTE[number % len(PALETTE)]
        ElementTree.SubElement(labels, "Label", value=_xml_text(name), background=color)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode")  # its reader refuses an XML declaration


def to_cvat(grounding: Grounding) -> str:
    """An XML file "CVAT for images 1.1"; the polygons of a phrase have its number as their group.

    Args:
        grounding: What `Grounder.ground` returns.

    Returns:
        The text of the file.

    Examples:
        >>> import ppmn
        >>> from PIL import Image
        >>> image = Image.new("RGB", (64, 48), "skyblue")
        >>> grounding = ppmn.load("compact", device="cpu").ground(image, "[sky]", threshold=0)
        >>> ppmn.to_cvat(grounding).count("<polygon")
        1
    """
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    task = ElementTree.SubElement(ElementTree.SubElement(root, "meta"), "task")
    labels = ElementTree.SubElement(task, "labels")
    for number, name in enumerate(category_ids(grounding)):
        label = ElementTree.SubElement(labels, "label")
        ElementTree.SubElement(label, "name").text = _xml_text(name)
        ElementTree.SubElement(label, "color").text = PALETTE[number % len(PALETTE)]
        ElementTree.SubElement(label, "attributes")
    width, height = map(str, grounding.image.size)
    name = _xml_text(image_file_name(grounding))
    image = ElementTree.SubElement(root, "image", id="0", name=name, width=width, height=height)
    for number, phrase in enumerate(grounding, 1):
        for polygon in mask_polygons(phrase.mask):
            points = ";".join(f"{x:.2f},{y:.2f}" for x, y in polygon)
            options = {"label": _xml_text(phrase.text.lower()), "source": "auto", "occluded": "0"}
            options |= {"points": points, "z_order": "0", "group_id": str(number)}
            ElementTree.SubElement(image, "polygon", options)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def _xml_text(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return _NOT_XML.sub(" ", text)
