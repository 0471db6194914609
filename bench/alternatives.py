"""Time from an image and ten phrases to ten masks: ours, and what people use instead.

python -m bench.alternatives [--model compact] [--repeat 2] [--threads 2]

Grounding DINO tiny with SAM ViT-B finds a box per phrase and a mask per box; CLIPSeg compares the image with
every phrase. Both run in transformers with random weights: their times are real, their masks are not. Every
row is measured in a process of its own, on torch in float32 but for ours, which runs as `ppmn.load` chooses.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from bench.ground import SIZE, best_time

PHRASES = "man, red shirt, dog, green grass, wooden bench, tall tree, blue sky, white cloud, ball, fence"
ROWS = ("ppmn", "Grounding DINO tiny + SAM ViT-B", "CLIPSeg")


def run_ours(model: str, threads: int) -> Callable[[], Any]:
    """Our model, as it is loaded by default."""
    import ppmn

    grounder = ppmn.load(model, device="cpu", threads=threads)
    image = Image.linear_gradient("L").resize(SIZE).convert("RGB")
    caption = " and ".join(f"[{phrase}]" for phrase in PHRASES.split(", "))
    return lambda: [phrase.mask for phrase in grounder.ground(image, caption)]


def run_boxes_and_masks() -> Callable[[], Any]:
    """Grounding DINO tiny at a shorter side of 800, then SAM ViT-B at 1024x1024 with one box per phrase."""
    import torch
    from transformers import GroundingDinoConfig, GroundingDinoForObjectDetection, SamConfig, SamModel

    detector = GroundingDinoForObjectDetection(GroundingDinoConfig()).eval()
    segmenter = SamModel(SamConfig()).eval()
    words = [[2158, 1012] if " " not in phrase else [2417, 2158, 1012] for phrase in PHRASES.split(", ")]
    ids = torch.tensor([[101, *(piece for phrase in words for piece in phrase), 102]])  # "man. red man. "
    image, square = torch.rand(1, 3, 800, 1066), torch.rand(1, 3, 1024, 1024)

    def run() -> Any:
        with torch.inference_mode():
            found = detector(pixel_values=image, input_ids=ids, attention_mask=torch.ones_like(ids))
            boxes = found.pred_boxes[:, : len(words)].clamp(0, 1) * 1024
            return segmenter(pixel_values=square, input_boxes=boxes, multimask_output=False).pred_masks

    return run


def run_clipseg() -> Callable[[], Any]:
    """CLIPSeg (ViT-B/16) at 352x352, one pair of image and text per phrase."""
    import torch
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation

    model = CLIPSegForImageSegmentation(CLIPSegConfig(vision_config={"patch_size": 16})).eval()
    number = len(PHRASES.split(", "))
    ids = torch.tensor([[49406, 320, 2533, 49407]] * number)
    images = torch.rand(1, 3, 352, 352).expand(number, -1, -1, -1)

    def run() -> Any:
        with torch.inference_mode():
            return model(input_ids=ids, pixel_values=images, attention_mask=torch.ones_like(ids)).logits

    return run


def measure(row: str, args: argparse.Namespace) -> dict[str, float]:
    """The time of one row, and of a matrix product in the same process."""
    if row == "ppmn":
        run = run_ours(args.model, args.threads)
    else:
        run = run_clipseg() if row == "CLIPSeg" else run_boxes_and_masks()
    run()
    square = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    return {
        "seconds": best_time(run, args.repeat),
        "matrix": best_time(lambda: square @ square, 20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="compact", help="name or folder of our model (default: compact)")
    parser.add_argument("--repeat", type=int, default=2, help="calls (default: 2)")
    parser.add_argument("--threads", type=int, default=2, help="threads of an operation (default: 2)")
    parser.add_argument("--child", choices=ROWS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args)))
        return
    print(f"{SIZE[0]}x{SIZE[1]}, ten phrases, {args.threads} threads")
    limits = {f"{name}_NUM_THREADS": str(args.threads) for name in ("OMP", "OPENBLAS", "MKL")}
    options = ["--model", args.model, "--repeat", str(args.repeat), "--threads", str(args.threads)]
    ours = 0.0
    for row in ROWS:
        command = [sys.executable, "-m", "bench.alternatives", "--child", row, *options]
        child = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | limits)
        found = json.loads(child.stdout.strip().splitlines()[-1])
        seconds, products = found["seconds"], found["seconds"] / found["matrix"]
        ours = ours or seconds
        print(f"{row:32} {seconds:7.2f} s {products:8.0f} matrix products, {seconds / ours:5.1f} times ours")


if __name__ == "__main__":
    main()
