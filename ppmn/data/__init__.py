"""Data sets on disk: panoptic annotations, narratives and their index, masks as training targets."""
