"""Data sets: the PNG benchmark, any COCO panoptic folder with narratives made for it, drawn scenes."""
