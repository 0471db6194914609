"""Small networks that tests build for themselves."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig, BertModel, BertTokenizer

from ppmn.config import ModelConfig, ResNetConfig, TextConfig
from ppmn.model.network import PPMN
from ppmn.model.resnet import ResNetFPN
from ppmn.model.text import TextEncoder

WORDS = (
    "a an the and of in on is there two few red green blue dog dogs cat grass sky tree person ball left right"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,'-[]"


def bert_folder(folder: Path, positions: int = 64) -> Path:
    """Write a tiny BERT with its own vocabulary in the format of transformers."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
    pieces += [p for c in LETTERS for p in (c, f"##{c}") if p not in pieces]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=positions,
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    return folder


def small_config(text: Path, **changes: object) -> ModelConfig:
    """A ResNet-18 with 8 channels in its stem, 32 channels in the head, images of 64 pixels."""
    image = ResNetConfig(depth=18, form="torchvision", norm="group", width=8, channels=32)
    fields = {
        "short_side": 64,
        "long_side": 128,
        "channels": 32,
        "rounds": 2,
        "pixels": 12,
        "count_padding": False,
        **changes,
    }
    return ModelConfig(image=image, text=TextConfig(str(text)), **fields)  # type: ignore[arg-type]


def small_ppmn(text: Path, **changes: object) -> PPMN:
    """A network of that configuration with random weights."""
    config = small_config(text, **changes)
    torch.manual_seed(1)
    encoder = ResNetFPN(config.image, config.count_padding)
    return PPMN(encoder, TextEncoder.from_source(str(text), config.query), config).eval()


def random_images(*sizes: tuple[int, int]) -> list[Tensor]:
    """Resized images of random pixels, uint8 (3, h, w)."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]
