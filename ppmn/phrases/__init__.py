"""The noun phrases of a caption."""
