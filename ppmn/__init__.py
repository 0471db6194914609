"""Panoptic narrative grounding with PPMN, the Pixel-Phrase Matching Network."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppmn.grounder import Grounder, Look, load
    from ppmn.grounding import Grounding
    from ppmn.noun_phrases import Phrase, parse_brackets, phrases

__version__ = "0.1.0"
__all__ = ["Grounder", "Grounding", "Look", "Phrase", "__version__", "load", "parse_brackets", "phrases"]

_HOME = {
    "Grounder": "grounder",
    "Grounding": "grounding",
    "Look": "grounder",
    "load": "grounder",
    "Phrase": "noun_phrases",
    "parse_brackets": "noun_phrases",
    "phrases": "noun_phrases",
}  # name -> module


def __getattr__(name: str) -> Any:
    """What `ppmn` exports is imported when it is first asked for; nothing runs at import."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ppmn.{_HOME[name]}"), name)
