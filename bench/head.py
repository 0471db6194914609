"""Time and memory of our head against a direct transcription of the released one.

python -m bench.head [--repeat 5]

At 800x1216 with L = 3, S = 200 and 64 rows, of which 44 are valid. A second caption of an image takes the
phrase side only; it is compared with the head alone, and with R101-FPN and the head.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from ppmn.config import ModelConfig, ResNetConfig
from ppmn.model.neck import sine_position
from ppmn.model.network import Head
from ppmn.model.pyramid import Pyramid
from ppmn.model.resnet import ResNetFPN

ROWS, VALID, HEIGHT, WIDTH = 64, 44, 800, 1216


def make_inputs() -> tuple[Pyramid, Tensor]:
    """A random pyramid, and phrases of which the last rows are padding."""
    torch.manual_seed(0)
    p2, p3, p4, p5 = (torch.randn(1, 256, HEIGHT // s, WIDTH // s) for s in (4, 8, 16, 32))
    phrases = torch.zeros(ROWS, 768)
    phrases[:VALID] = torch.randn(VALID, 768)
    return Pyramid((p2, p3, p4, p5)), phrases


class TranscribedHead:
    """The released head step by step: all rows, doubled maps, every gathered pixel projected."""

    def __init__(self, head: Any) -> None:
        self.head = head
        self.attention = []
        for refine in self.head.rounds:
            mca = refine.aggregate
            attention = nn.MultiheadAttention(256, 8)
            with torch.no_grad():
                attention.in_proj_weight.copy_(
                    torch.cat([mca.query.weight, mca.key.weight, mca.value.weight])
                )
                attention.in_proj_bias[:256] = mca.query.bias
                attention.in_proj_bias[512:] = mca.value.bias
                attention.out_proj.load_state_dict(mca.out.state_dict())
            self.attention.append(attention)

    def neck(self, pyramid: Pyramid) -> Tensor:
        maps = []
        for index, (level, blocks) in enumerate(zip(pyramid.levels, self.head.neck.levels, strict=True)):
            x = level + sine_position(level, None) if index == 3 else level
            for block in blocks:
                x = fn.interpolate(x, scale_factor=2.0, mode="nearest") if block.doubles else x
                x = fn.relu(block.norm(block.conv(x)))
            maps.append(x)
        return fn.relu(self.head.neck.norm(self.head.neck.merge(sum(maps))))

    def __call__(self, pyramid: Pyramid, phrases: Tensor) -> list[Tensor]:
        first, *later = self.head.project_pixels
        x = fn.relu(first.norm(first.conv(self.neck(pyramid))))  # (1, C, H, W)
        R = self.head.project_phrases(phrases)[None]  # (1, N, C)
        masks = [double(torch.einsum("bchw,bnc->bnhw", x, R))]
        for refine, project, attention in zip(self.head.rounds, later, self.attention, strict=True):
            xs = fn.relu(project.norm(project.conv(x)))
            small = fn.interpolate(masks[-1], xs.shape[-2:], mode="bilinear", align_corners=False)
            index = small.flatten(-2).topk(self.head.config.pixels).indices  # (1, N, S)
            table = xs.flatten(-2).transpose(1, 2)[:, None].expand(-1, R.shape[1], -1, -1)  # (1, N, HW, C)
            gathered = table.gather(2, index[..., None].expand(-1, -1, -1, xs.shape[1]))  # (1, N, S, C)
            pixels = gathered[0].transpose(0, 1)  # (S, N, C)
            h = refine.norm1(R + attention(R, pixels, pixels, need_weights=False)[0])
            R = refine.norm2(h + refine.ffn(h))
            masks.append(double(torch.einsum("bchw,bnc->bnhw", xs, refine.mlp(R))))
        return masks


def double(H: Tensor) -> Tensor:
    """Maps at twice their size."""
    return fn.interpolate(H, scale_factor=2.0, mode="bilinear", align_corners=False)


def run_ours(head: Head, pyramid: Pyramid, phrases: Tensor) -> Tensor:
    """Our last maps, at the size of the transcription's."""
    return double(head(pyramid, phrases[:VALID], [VALID]).H[-1][None])


def peak_memory(name: str) -> float:
    """Peak memory in MB of a process that runs one of the two once."""
    command = [sys.executable, "-m", "bench.head", "--only", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="calls of each (default: 5)")
    parser.add_argument("--only", choices=["ours", "transcribed"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    # before this process grows: Linux counts the memory of the parent into the peak of a child
    memory = {} if args.only else {name: peak_memory(name) for name in ("transcribed", "ours")}
    pyramid, phrases = make_inputs()
    head = Head(256, 768, ModelConfig()).eval()
    transcribed = TranscribedHead(head)
    runs: dict[str, Callable[[], object]] = {
        "transcribed": lambda: transcribed(pyramid, phrases),
        "ours": lambda: run_ours(head, pyramid, phrases),
    }
    if args.only:
        runs[args.only]()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    difference = (transcribed(pyramid, phrases)[-1][:, :VALID] - run_ours(head, pyramid, phrases)).abs()
    pixels = head.encode(pyramid)
    encoder = ResNetFPN(ResNetConfig(), count_padding=True).eval()
    image = torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8)
    runs["second caption"] = lambda: head.ground(pixels, phrases[:VALID], [VALID])
    runs["image encoder"] = lambda: encoder([image])
    matrix = torch.randn(2048, 2048)
    runs["matmul"] = lambda: matrix @ matrix
    best = best_times(runs, args.repeat)
    print(f"largest difference of the last maps      {difference.max():.1e}")
    print(f"ours / transcribed                       {best['ours'] / best['transcribed']:.2f}")
    second, whole = best["second caption"], best["image encoder"] + best["ours"]
    print(f"second caption / head                    {second / best['ours']:.3f}")
    print(f"second caption / image encoder and head  {second / whole:.3f}")
    for name, megabytes in memory.items():
        print(f"{name:11} / a 2048 x 2048 matmul        {best[name] / best['matmul']:.1f}")
        print(f"{name:11} peak memory                  {megabytes:.0f} MB")


def best_times(runs: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Seconds of the fastest call of each; calls alternate, so that all meet the same load of the machine."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeat):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
