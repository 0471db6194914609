"""From an image and a caption to a mask for every noun phrase."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppmn.grounding.corpus_run import corpus

__all__ = ["corpus"]


def __getattr__(name: str) -> Any:
    """`corpus`, imported on first use: it needs Arrow."""
    if name != "corpus":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ppmn.grounding.corpus_run import corpus

    return corpus
