"""Train the layers that decide whether what a phrase names is in the image; all else stays as it is.

python -m experiments.train_presence --model DIR --data-root PHOTOS --out DIR

A model that has this part goes on from its weights. Each image is encoded once, its tokens kept in --cache; a
run that was stopped continues. At every pass over an image, its own captions are asked for, a noun for every
category that its source annotates, lists of nouns, and phrases of other images. Where annotations are not
complete, only what is in the image is asked for. The masks of the categories supervise which tokens show what
a noun names.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from tqdm import tqdm

from experiments.presence_masks import STEPS, covered_tokens, token_loss
from experiments.presence_phrases import SWAPPED, SWAPPED_BY_PEOPLE, PresencePhrases, Question
from ppmn.config import CalibrationConfig, ModelConfig, TrainConfig
from ppmn.data.panoptic import Panoptic, PanopticImage, read_panoptic, splits, unknown_ids
from ppmn.data.partition import in_part
from ppmn.files import replacing
from ppmn.images import read_image
from ppmn.model.bfloat16 import bfloat16_is_faster
from ppmn.model.folder import model_folder, read_config, save_model
from ppmn.model.network import PPMN
from ppmn.model.presence import Presence
from ppmn.training.feature_cache import encoder_fingerprint
from ppmn.training.initial import initial_model
from ppmn.training.schedule import WeightAverage, copy_weights

# most images of each source; an incomplete one tells only how people describe what is there
SOURCES = {
    "coco_people": 800,
    "coco_things": 400,
    "coco_panoptic": 100,
    "coco_instances": 3000,
    "ade": 1600,
    "refcoco": 500,
}
SIDE = 448  # the shorter side that images are resized to
LAYERS, BATCH, WARMUP, DROPOUT = 2, 4, 200, 0.1
CHECKPOINT_EVERY = 200  # steps
_WEIGHT = 3.0  # of all absent phrases of an image together, relative to its present ones
_TOKEN_WEIGHT = 0.5  # of the loss of token logits


@dataclass(frozen=True)
class Encoded:
    """What is kept of an image of n tokens.

    Attributes:
        own: The encoder's own tokens, (1, n, C_t).
        tokens: Those with context, (1, n, C).
        covered: How much of each token a category covers, (n,) each, from 0 to 1.
        known: 1 where it is known what at least half of a token shows, else 0, (n,).
    """

    own: Tensor
    tokens: Tensor
    covered: dict[int, Tensor]
    known: Tensor


@dataclass(frozen=True)
class Sample:
    """A training image of a source, and the file that its tokens are kept in."""

    source: str
    image: PanopticImage
    file: Path


def presence_loss_of_image(logits: Tensor, present: Tensor) -> Tensor:
    """Cross-entropy; the many absent phrases weigh `_WEIGHT` times as much as the present ones at most."""
    weight = (_WEIGHT * present.sum() / (~present).sum().clamp(min=1)).clamp(max=1.0)
    weights = torch.where(present, 1.0, weight)
    return (
        fn.binary_cross_entropy_with_logits(logits, present.float(), weights, reduction="sum") / weights.sum()
    )


class Training:
    """The model, its images and their phrases."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rng = args, np.random.default_rng(args.seed)
        torch.manual_seed(args.seed)
        folder = model_folder(args.model)
        config = read_config(folder)
        if not isinstance(config, ModelConfig) or config.pointing is None:
            raise SystemExit(f"{args.model} does not point: there are no tokens to look at")
        pointing = replace(config.pointing, presence_layers=LAYERS)
        model = initial_model(TrainConfig(replace(config, pointing=pointing)), folder)
        assert isinstance(model, PPMN) and model.head.pointing and model.head.pointing.presence
        self.model = model.requires_grad_(False).eval()
        # what was fitted to other weights does not fit
        self.config = replace(config, pointing=pointing, calibration=CalibrationConfig())
        self.pointing = model.head.pointing
        self.presence: Presence = model.head.pointing.presence.requires_grad_(True)
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=bfloat16_is_faster())
        tokens = nn.ModuleList(
            [model.get_submodule("image_encoder"), self.pointing.project, self.pointing.position]
        )
        tokens.extend([self.pointing.image_layers, self.pointing.image_norm])
        self.cache = args.cache / encoder_fingerprint(tokens, "")[:16]
        self.cache.mkdir(parents=True, exist_ok=True)
        self.sources = dict(self.read_sources())
        self.samples = list(self.choose())
        self.phrases = self.encode_phrases()

    def read_sources(self) -> Iterator[tuple[str, Panoptic]]:
        for name in SOURCES:
            if (self.args.data_root / name).is_dir():
                found = splits(self.args.data_root / name)
                if len(found) > 1:
                    raise SystemExit(f"{name} has the splits {', '.join(found)}; one of them is expected")
                yield name, read_panoptic(self.args.data_root / name, found[0])

    def choose(self) -> Iterator[Sample]:
        """Of each source at most so many images that are not held out, drawn at random."""
        for name, source in self.sources.items():
            images = [i for i in source.images if i.segments and in_part(i, "train")]
            for index in self.rng.permutation(len(images))[: SOURCES[name]]:
                image = images[int(index)]
                yield Sample(name, image, self.cache / f"{name}_{image.file.stem}.npz")

    def encode_phrases(self) -> dict[str, PresencePhrases]:
        phrases = {}
        for name, source in tqdm(self.sources.items(), "captions", disable=None):
            images = [sample.image for sample in self.samples if sample.source == name]
            phrases[name] = PresencePhrases(source, images, self.args.seed)
            phrases[name].encode(self.model.text_encoder, self.autocast)
        return phrases

    @torch.no_grad()
    def encoded(self, sample: Sample) -> Encoded:
        """The tokens and masks of an image, cached; tokens in 8 bits with one scale per channel."""
        if not sample.file.is_file():
            preprocess = replace(self.model.preprocess, short_side=SIDE, long_side=SIDE * 4 // 3)
            with self.autocast:
                pyramid = self.model.image_encoder([preprocess(read_image(sample.image.file))])
                own, _, tokens, _ = self.pointing.contextual_tokens(pyramid)
            both = torch.cat([own, tokens], -1)[0].float()  # (n, C_t + C)
            scale = both.abs().amax(0).clamp(min=1e-6) / 127
            height, width = pyramid.tokens.shape[-2:]
            source = self.sources[sample.source]
            unknown = unknown_ids(source.categories, complete=source.complete)
            categories, steps = covered_tokens(sample.image, (height, width), unknown)
            integers = (both / scale).round().to(torch.int8).numpy()
            arrays = {"integers": integers, "scale": scale.numpy(), "categories": categories, "steps": steps}
            with replacing(sample.file) as part, part.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        with np.load(sample.file) as kept:
            both = torch.from_numpy(kept["integers"]) * torch.from_numpy(kept["scale"])
            *shares, unknown_share = torch.from_numpy(kept["steps"]) / STEPS**2
            covered = dict(zip(kept["categories"].tolist(), shares, strict=True))
        split = both.shape[1] - self.pointing.object.shape[0]
        return Encoded(both[None, :, :split], both[None, :, split:], covered, (unknown_share <= 0.5).float())

    def asked(self, sample: Sample) -> list[Question]:
        """What is asked of an image at one pass."""
        mine, image = self.phrases[sample.source], sample.image
        found = list(mine.of_image(image))
        if mine.complete:
            found += [*mine.of_nouns(image, self.rng), *mine.of_lists(image, self.rng)]
            found += mine.swapped(image, mine, SWAPPED, self.rng)
            by_people = self.phrases.get("refcoco")
            if by_people and sample.source in ("coco_things", "coco_panoptic", "coco_instances"):
                found += mine.swapped(image, by_people, SWAPPED_BY_PEOPLE, self.rng)
        return found

    def loss(self, samples: Sequence[Sample]) -> Tensor:
        """The mean over the images of a step."""
        losses = []
        for sample in samples:
            asked, encoded = self.asked(sample), self.encoded(sample)
            if not asked:
                continue
            vectors = fn.dropout(torch.stack([question.vector for question in asked]).float(), DROPOUT)
            own, tokens = (fn.dropout1d(x.mT, DROPOUT).mT for x in (encoded.own, encoded.tokens))
            with self.autocast:
                logits, of_tokens = self.presence.decide(vectors, self.presence.memory(own, tokens), None)
            present = torch.tensor([question.present for question in asked])
            losses.append(presence_loss_of_image(logits.float(), present))
            shown = [number for number, question in enumerate(asked) if question.meant]
            if shown:
                meant = [asked[number].meant or frozenset() for number in shown]
                loss = token_loss(of_tokens[shown].float(), meant, encoded.covered, encoded.known)
                losses.append(_TOKEN_WEIGHT * loss)
        return torch.stack(losses).sum() / len(samples)

    def run(self) -> None:
        """All steps that are left; the moving average of the weights is what is saved."""
        parameters = dict(self.presence.named_parameters())
        optimizer = torch.optim.AdamW(parameters.values(), lr=self.args.rate, weight_decay=0.01)
        average, steps, first = WeightAverage(parameters, 0.999), self.args.samples // BATCH, 0
        checkpoint = self.args.out.with_name(f"{self.args.out.name}_checkpoint.pt")
        if checkpoint.is_file():
            state = torch.load(checkpoint, weights_only=True)
            copy_weights(parameters, state["weights"])
            optimizer.load_state_dict(state["optimizer"])
            average.values, first = state["average"], state["step"]
        for step in (bar := tqdm(range(first, steps), "steps", disable=None)):
            self.rng = np.random.default_rng((self.args.seed, step))
            torch.manual_seed(self.args.seed * 1_000_003 + step)
            rate = self.args.rate * min(1, step / WARMUP) * (1 + math.cos(math.pi * step / steps)) / 2
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            loss = self.loss([self.samples[int(i)] for i in self.rng.integers(len(self.samples), size=BATCH)])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
            optimizer.step()
            average.update(step + 1)
            if (step + 1) % CHECKPOINT_EVERY == 0:
                state = {"weights": parameters, "average": average.values, "step": step + 1}
                with replacing(checkpoint) as part:
                    torch.save(state | {"optimizer": optimizer.state_dict()}, part)
            bar.set_postfix(loss=f"{float(loss.detach()):.3f}")
        with average.applied():
            self.model.config = self.config
            save_model(self.model, self.args.out, half=True)
        checkpoint.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="name or folder of a model that points")
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the sources")
    parser.add_argument("--out", type=Path, required=True, help="the model folder that is written")
    parser.add_argument("--cache", type=Path, default=Path("cache-presence"), help="folder of tokens")
    parser.add_argument("--samples", type=int, default=12000, help="passes over an image")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    Training(args).run()
    print(f"{args.out}: fit presence and score next (python -m experiments.calibrate --write)")


if __name__ == "__main__":
    main()
