"""Panoptic narrative grounding with PPMN, the Pixel-Phrase Matching Network."""

__version__ = "0.1.0"
