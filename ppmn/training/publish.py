"""Put a trained model on the Hugging Face hub, with a model card written from its run."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ppmn.config import ModelConfig
from ppmn.errors import InputError
from ppmn.files import read_json
from ppmn.model.folder import CONFIG_FILE, MODEL_FILE, model_folder
from ppmn.model.hub import MODEL_FILES, upload_model

_CARD = "README.md"
_RECIPE = ("epochs", "batch_size", "lr", "lr_text", "lr_image", "schedule", "negative_phrases", "seed")


def push_to_hub(
    name_or_folder: str | Path, name: str, *, private: bool = False, token: str | None = None
) -> str:
    """Upload a model folder and its card; nothing else of a run is uploaded.

    Args:
        name_or_folder: A model folder, such as `ppmn train` writes.
        name: The name on the hub, `owner/name`; the repository is made if it is missing.
        private: Make a new repository private.
        token: A token that may write; None takes that of `hf auth login`.

    Returns:
        The address of the commit.

    Raises:
        InputError: The folder is not a model, or the hub refuses it.

    Examples:
        >>> import ppmn
        >>> ppmn.push_to_hub("runs/mine", "me/dogs")  # doctest: +SKIP
        'https://huggingface.co/me/dogs/commit/0123456789'
        >>> ppmn.load("me/dogs")  # doctest: +SKIP
    """
    folder = model_folder(name_or_folder)
    ModelConfig.load(folder / CONFIG_FILE)
    if not (folder / MODEL_FILE).is_file():
        raise InputError(f"{folder} is not a model folder: {MODEL_FILE} is missing")
    files: dict[str, bytes | Path] = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(fnmatch(path.relative_to(folder).as_posix(), p) for p in MODEL_FILES)
    }
    own = folder / _CARD
    files[_CARD] = own if own.is_file() else model_card(folder, name).encode()
    return upload_model(name, files, private=private, token=token)


def model_card(folder: Path, name: str) -> str:
    """A model card in Markdown, from what a model folder and its run hold; it states what was measured."""
    config = ModelConfig.load(folder / CONFIG_FILE)
    run = read_json(folder / "train.json") if (folder / "train.json").is_file() else None
    lines = [
        *("---", "library_name: ppmn", "pipeline_tag: image-segmentation"),
        *("tags: [panoptic-narrative-grounding, segmentation]", "---", "", f"# {name}", ""),
        "A model for [ppmn](https://pypi.org/project/ppmn/): a mask for every noun phrase of a caption.",
        *("", "    import ppmn", f'    grounder = ppmn.load("{name}")'),
        *("", "## Model", "", *_network_lines(config)),
        *(["", "## Training", "", *_training_lines(run)] if run else []),
        *("", "## Metrics", "", *_metric_lines(folder)),
    ]
    return "\n".join(lines) + "\n"


def _network_lines(config: ModelConfig) -> Iterator[str]:
    yield f"- image encoder: {config.image.kind}; images of {config.short_side} to {config.long_side} pixels"
    yield f"- text encoder: {config.text.source if config.text.source != 'text' else 'in this repository'}"
    yield f"- {config.rounds} rounds, {config.pixels} pixels per query, {config.channels} channels"
    pointing = "yes" if config.pointing else "no"
    yield f"- tells instances apart and says whether a phrase is in the image: {pointing}"
    calibrated = (
        "the expected IoU" if config.calibration.score_weights else "the mean response (not calibrated)"
    )
    yield f"- threshold {config.threshold:g}; the score of a mask is {calibrated}"


def _training_lines(run: Mapping[str, Any]) -> Iterator[str]:
    for source, details in run["data"].items():
        yield f"- data: {source}, weight {details['weight']:g}"
    yield f"- started from a model: {'yes' if run['init'] else 'no'}"
    recipe = run["config"]
    yield "- " + ", ".join(f"{field} {recipe[field]}" for field in _RECIPE)


def _metric_lines(folder: Path) -> list[str]:
    """The best validation of the run's log."""
    file = folder / "log.jsonl"
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        with suppress(json.JSONDecodeError):  # a line cut off by a kill
            found += [row] if "validation" in (row := json.loads(line)) else []
    if not found:
        return ["Nothing was measured while training."]
    best = max(found, key=lambda row: row["validation"]["overall"] or 0.0)
    figures = {split: value for split, value in best["validation"].items() if value is not None}
    return [
        f"Average Recall (protocol `full`) on the images held out by the run, after epoch {best['epoch']}:",
        *("", "| " + " | ".join(figures) + " |", "|" + "---|" * len(figures)),
        "| " + " | ".join(f"{value:.1f}" for value in figures.values()) + " |",
    ]
