"""Panoptic narrative grounding with PPMN, the Pixel-Phrase Matching Network."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppmn.grounding.grounder import EncodedImage, Grounder, load
    from ppmn.grounding.result import Grounding
    from ppmn.phrases.rules import Phrase, find_phrases, parse_brackets

__version__ = "0.1.0"
__all__ = [
    "EncodedImage",
    "Grounder",
    "Grounding",
    "Phrase",
    "__version__",
    "find_phrases",
    "load",
    "parse_brackets",
]

_HOME = {
    "Grounder": "grounding.grounder",
    "Grounding": "grounding.result",
    "EncodedImage": "grounding.grounder",
    "Phrase": "phrases.rules",
    "find_phrases": "phrases.rules",
    "load": "grounding.grounder",
    "parse_brackets": "phrases.rules",
}  # name -> module


def __getattr__(name: str) -> Any:
    """What `ppmn` exports is imported when it is first asked for; nothing runs at import."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ppmn.{_HOME[name]}"), name)
