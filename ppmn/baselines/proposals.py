"""Stage one of the two-stage baseline, read from the files that detectron2's Panoptic FPN left.

predictions.json                        categories, and the segments of each image
panoptic_seg_predictions/<image>.png    segment ids 1..n: things by falling score, then stuff by class
mask_features/<image>.pth               one row per thing, (n, 256, 14, 14): input of the mask head
sem_seg_features/<image>.pth            one map per stuff class, (m, h, w): its logits
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn
from numpy.typing import NDArray
from torch import Tensor

from ppmn.baselines.two_stage import TwoStageConfig
from ppmn.data.panoptic import PanopticImage, read_ids
from ppmn.errors import InputError
from ppmn.files import existing_file, read_json
from ppmn.types import Mask, SegmentIds

MAX_SEGMENTS = 255  # the released code reads the red byte of the PNG only


@dataclass(frozen=True)
class Proposals:
    """The regions of one image; row j is the segment with id j + 1."""

    ids: SegmentIds  # (H, W), 0 where there is no region
    features: Tensor  # (P, region_size)
    boxes: Tensor  # (P, 4): x, y, width, height in pixels of the image

    def __len__(self) -> int:
        return len(self.features)

    def mask(self, rows: Iterable[int]) -> Mask:
        """The union of some regions; rows past the last, which are padding, are empty."""
        union: Mask = np.isin(self.ids, [row + 1 for row in rows])
        return union


class StageOne:
    """A folder of stage one's output.

    Args:
        folder: The folder with the files that this module's docstring lists.
        config: Of the second stage; its `region_size` says how long the features are.
    """

    def __init__(self, folder: Path, config: TwoStageConfig) -> None:
        self.folder, self.config = folder, config
        file = existing_file(folder / "predictions.json", f"{folder} is not the output of stage one")
        raw = read_json(file)
        try:
            self._things = {c["id"]: bool(c["isthing"]) for c in raw["categories"]}
            self._annotations: dict[int, Mapping[str, Any]] = {a["image_id"]: a for a in raw["annotations"]}
        except (KeyError, TypeError) as error:
            raise InputError(f"{file} is not detectron2's panoptic predictions (at {error})") from error

    def read(self, image: PanopticImage) -> Proposals:
        """The proposals of an image.

        Raises:
            InputError: Files are missing, or do not fit the image or one another.
        """
        annotation = self._annotations.get(image.id)
        if annotation is None:
            raise InputError(f"{self.folder} has no proposals of image {image.id}")
        ids = self._ids(image)
        things = self._segments(image, annotation, ids)
        features = torch.cat(
            [
                self._thing_features(image, sum(things)),
                self._stuff_features(image, len(things) - sum(things)),
            ]
        )
        return Proposals(ids, features, torch.tensor(tight_boxes(ids, len(things))).view(-1, 4).float())

    def _ids(self, image: PanopticImage) -> SegmentIds:
        png = self.folder / "panoptic_seg_predictions" / f"{image.id:012d}.png"
        ids = read_ids(existing_file(png, f"the proposals of image {image.id} have no map"))
        if ids.shape != (image.height, image.width):
            raise InputError(
                f"{png} has {ids.shape[0]} x {ids.shape[1]} pixels, but image {image.id} has "
                f"{image.height} x {image.width}"
            )
        if ids.max(initial=0) > MAX_SEGMENTS:
            raise InputError(f"{png} holds the segment id {ids.max()}; the limit is {MAX_SEGMENTS}")
        return ids

    def _segments(self, image: PanopticImage, annotation: Mapping[str, Any], ids: SegmentIds) -> list[bool]:
        """Whether each segment is a thing, by id from 1; things must come first."""
        where = f"the proposals of image {image.id}"
        try:
            listed = {int(s["id"]): self._things[s["category_id"]] for s in annotation["segments_info"]}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where} have a segment without id or known category (at {error})") from error
        if max(listed, default=0) > MAX_SEGMENTS:
            raise InputError(f"{where} hold the segment id {max(listed)}; the limit is {MAX_SEGMENTS}")
        drawn = {int(id) for id in np.unique(ids)} - {0}
        numbers = set(range(1, len(listed) + 1))
        if set(listed) != numbers or drawn != numbers:
            raise InputError(
                f"{where} list {len(listed)} segments and draw {len(drawn)}; ids must be 1 to n in both"
            )
        things = [listed[id] for id in sorted(listed)]
        if things != sorted(things, reverse=True):
            raise InputError(f"{where} have stuff before a thing; features are stored things first")
        return things

    def _thing_features(self, image: PanopticImage, count: int) -> Tensor:
        features = self._features("mask_features", image, count)
        size = self.config.region_size
        if count and features[0].numel() != size:
            found = features[0].numel()
            raise InputError(f"things of image {image.id} have {found:,} numbers; the network reads {size:,}")
        return features.reshape(count, size)

    def _stuff_features(self, image: PanopticImage, count: int) -> Tensor:
        maps = self._features("sem_seg_features", image, count)
        if not count:
            return torch.zeros(0, self.config.region_size)
        if maps.ndim != 3:
            raise InputError(f"the stuff of image {image.id} has features {tuple(maps.shape)}, not (m, h, w)")
        side = self.config.stuff_side
        return fn.adaptive_avg_pool2d(maps, (side, side)).flatten(1)  # (m, 50176)

    def _features(self, kind: str, image: PanopticImage, count: int) -> Tensor:
        file = existing_file(
            self.folder / kind / f"{image.id}.pth", f"the proposals of image {image.id} have no features"
        )
        try:
            features = torch.load(file, "cpu", weights_only=True)
        except Exception as error:  # a broken file may raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{file} cannot be read as a tensor ({reason})") from error
        if not isinstance(features, Tensor) or not features.is_floating_point() or len(features) != count:
            found = f"{tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
            raise InputError(f"{file} holds {found}, but image {image.id} has {count} such segments")
        if not features.isfinite().all():
            raise InputError(f"{file} holds values that are not finite")
        return features.float()


def tight_boxes(ids: SegmentIds, count: int) -> NDArray[np.int64]:
    """x, y, x_max - x_min and y_max - y_min of segments 1 to `count`, (count, 4)."""
    boxes = np.zeros((count, 4), np.int64)
    for row in range(count):
        ys, xs = np.nonzero(ids == row + 1)
        boxes[row] = xs.min(), ys.min(), np.ptp(xs), np.ptp(ys)
    return boxes
