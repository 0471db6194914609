"""Types that every room uses."""

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]  # start and end, in characters of a caption
Size = tuple[int, int]  # height, width
Box = tuple[int, int, int, int]  # x, y, width, height
Mask = NDArray[np.bool_]  # (H, W)
Map = NDArray[np.float32]  # responses, (H, W) or (P, H, W)
SegmentIds = NDArray[np.int32]  # (H, W)
