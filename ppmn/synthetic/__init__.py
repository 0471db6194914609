"""Narratives and images that are generated."""
