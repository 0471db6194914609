"""Tiny random encoders of the families of transformers, written as folders."""

from pathlib import Path
from typing import Any

import torch
import transformers
from support.models import LETTERS, WORDS
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING

VIT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
STAGES = {"depths": [1, 1, 1, 1]}
BACKBONES: dict[str, Any] = {
    "swin": lambda: transformers.SwinConfig(
        **STAGES, embed_dim=8, num_heads=[1, 2, 2, 4], window_size=4, image_size=64
    ),
    "convnext": lambda: transformers.ConvNextConfig(**STAGES, hidden_sizes=[8, 12, 16, 24]),
    "dinov2": lambda: transformers.Dinov2Config(**VIT, patch_size=14, image_size=56),
    "dinov3": lambda: transformers.DINOv3ViTConfig(**VIT, patch_size=16, image_size=64),
    "dinov3-convnext": lambda: transformers.DINOv3ConvNextConfig(**STAGES, hidden_sizes=[8, 12, 16, 24]),
}
BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
TEXTS: dict[str, Any] = {
    "roberta": lambda n: transformers.RobertaConfig(vocab_size=n, pad_token_id=0, **BERT),
    "mpnet": lambda n: transformers.MPNetConfig(vocab_size=n, pad_token_id=0, **BERT),
    "deberta": lambda n: transformers.DebertaV2Config(
        vocab_size=n, relative_attention=True, position_biased_input=False, **BERT
    ),
    "modernbert": lambda n: transformers.ModernBertConfig(
        vocab_size=n, pad_token_id=0, cls_token_id=2, sep_token_id=3, **BERT
    ),
}


def backbone_folder(folder: Path, family: str) -> Path:
    """Write a tiny backbone with random weights."""
    torch.manual_seed(0)
    config = BACKBONES[family]()
    MODEL_FOR_BACKBONE_MAPPING[type(config)](config).save_pretrained(folder)
    return folder


def text_folder(folder: Path, family: str) -> Path:
    """Write a tiny text encoder with random weights and a tokenizer of words and letters."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
    pieces += [p for c in LETTERS for p in (c, f"##{c}") if p not in pieces]
    words = models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(0)
    transformers.AutoModel.from_config(TEXTS[family](len(pieces))).save_pretrained(folder)
    return folder
