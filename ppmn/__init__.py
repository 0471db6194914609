"""Panoptic narrative grounding with PPMN, the Pixel-Phrase Matching Network."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppmn.errors import InputError
    from ppmn.grounding.annotation_tools import to_cvat, to_label_studio, to_labelme, to_yolo
    from ppmn.grounding.coco import to_coco, to_panoptic
    from ppmn.grounding.contact_sheet import contact_sheet
    from ppmn.grounding.encoded_image import EncodedImage
    from ppmn.grounding.formats import save, to_supervision
    from ppmn.grounding.grounder import Grounder, load
    from ppmn.grounding.page import to_html
    from ppmn.grounding.render import cut_out, overlay
    from ppmn.grounding.result import Grounding, PhrasePrediction
    from ppmn.phrases.rules import Phrase, find_phrases, parse_brackets
    from ppmn.training.publish import push_to_hub

__version__ = "0.1.0"
_MODULES = {
    "errors": ("InputError",),
    "grounding.annotation_tools": ("to_cvat", "to_label_studio", "to_labelme", "to_yolo"),
    "grounding.coco": ("to_coco", "to_panoptic"),
    "grounding.contact_sheet": ("contact_sheet",),
    "grounding.encoded_image": ("EncodedImage",),
    "grounding.formats": ("save", "to_supervision"),
    "grounding.grounder": ("Grounder", "load"),
    "grounding.page": ("to_html",),
    "grounding.render": ("cut_out", "overlay"),
    "grounding.result": ("Grounding", "PhrasePrediction"),
    "phrases.rules": ("Phrase", "find_phrases", "parse_brackets"),
    "training.publish": ("push_to_hub",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import what `ppmn` exports on first use, so that `import ppmn` stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ppmn.{_HOME[name]}"), name)
