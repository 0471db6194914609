"""`ppmn convert`: what others released -> a model folder."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertModel, BertTokenizer

from ppmn.config import ModelConfig, ResNetConfig, TextConfig
from ppmn.convert import key_maps as names
from ppmn.convert.unpickle import read_checkpoint, tensors_of
from ppmn.errors import InputError
from ppmn.model.folder import MODEL_FILE, build_image_encoder, copy_tensors, few
from ppmn.model.network import PPMN
from ppmn.model.text import PACKAGE, TextEncoder

DEAD = re.compile(
    r"rpn_head\.localization_fpn\.aux_convs\..*"
    r"|roi_head\.mask_head\.\d+\.(attention|attention_norm|kernel_update_conv|ffn|ffn_norm|cls_fcs|fc_cls)\..*"
)
PYRAMID = ("lateral.", "output.")


@dataclass(frozen=True)
class Part:
    """Tensors of one part under our names, those that stay behind, and what the tensors say of its shape."""

    where: str
    tensors: dict[str, Tensor]
    left: dict[str, Tensor]
    shape: Mapping[str, Any]


def parts_of(file: Path) -> dict[str, Part]:
    """The head, image or text encoder that a file holds; it is known by the names in it."""
    raw, where = read_checkpoint(file), str(file)
    if isinstance(raw, Mapping) and "model_state" in raw:
        parts = {"head": head_part(tensors_of(raw["model_state"], where), where)}
        if "fpn_model_state" in raw:
            parts["image"] = detectron2_part(tensors_of(raw["fpn_model_state"], where), where)
        if "bert_model_state" in raw:
            parts["text"] = text_part(tensors_of(raw["bert_model_state"], where), where)
        return parts
    state = tensors_of(raw["model"] if isinstance(raw, Mapping) and "model" in raw else raw, where)
    if any(name.startswith((names.MATCHING, names.ROUND)) for name in state):
        return {"head": head_part(state, where)}
    if any(name.startswith("backbone.bottom_up.") for name in state):
        return {"image": detectron2_part(state, where)}
    if "layer1.0.conv1.weight" in state:
        return {"image": torchvision_part(state, where)}
    if any(map(names.bert_name, state)):
        return {"text": text_part(state, where)}
    raise InputError(
        f"{where} holds neither a released PPMN nor detectron2's or torchvision's ResNet nor a BERT, "
        f"but {len(state)} tensors ({few(list(state))})"
    )


def head_part(state: dict[str, Tensor], where: str) -> Part:
    rounds = names.released_rounds(state)
    left = without(state, names.released_head_used(rounds), where)
    unknown = [name for name in left if not DEAD.fullmatch(name)]
    if unknown:
        raise InputError(f"{where} holds {len(unknown)} tensors that no released PPMN has ({few(unknown)})")
    tensors = names.released_head(state, rounds)
    return Part(where, tensors, left, {"rounds": rounds, "channels": len(tensors["project_phrases.weight"])})


def detectron2_part(state: dict[str, Tensor], where: str) -> Part:
    depth = names.resnet_depth(state, where)
    left = without(state, names.detectron2_names(depth).values(), where)
    unknown = [name for name in left if name.startswith("backbone.")]
    if unknown:
        raise InputError(f"{where} holds {len(unknown)} tensors that no ResNet-FPN has ({few(unknown)})")
    tensors = names.detectron2_encoder(state, depth)
    channels = len(tensors["lateral.0.weight"])
    shape = {"depth": depth, "form": "detectron2", "norm": "frozen", "channels": channels}
    return Part(where, tensors, left, shape | {"width": len(tensors["stem.conv.weight"])})


def torchvision_part(state: dict[str, Tensor], where: str) -> Part:
    depth = names.resnet_depth(state, where)
    table = names.torchvision_names(depth)
    left = without(state, table.values(), where)
    tensors = {ours: state[theirs] for ours, theirs in table.items()}
    shape = {"depth": depth, "form": "torchvision", "norm": "frozen"}
    return Part(where, tensors, left, shape | {"width": len(tensors["stem.conv.weight"])})


def text_part(state: dict[str, Tensor], where: str) -> Part:
    ours = {name: names.bert_name(name) for name in state}
    tensors = {new: state[name] for name, new in ours.items() if new is not None}
    left = {name: state[name] for name, new in ours.items() if new is None}
    try:
        vocabulary, hidden = tensors["embeddings.word_embeddings.weight"].shape
        layers = {name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")}
        shape = {
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "num_hidden_layers": len(layers),
            "num_attention_heads": max(hidden // 64, 1),
            "intermediate_size": len(tensors["encoder.layer.0.intermediate.dense.weight"]),
            "max_position_embeddings": len(tensors["embeddings.position_embeddings.weight"]),
            "type_vocab_size": len(tensors["embeddings.token_type_embeddings.weight"]),
        }
    except (KeyError, ValueError) as error:
        raise InputError(f"{where} holds no whole BERT (at {error})") from error
    return Part(where, tensors, left, shape)


def without(state: dict[str, Tensor], used: Iterable[str], where: str) -> dict[str, Tensor]:
    """What is left of a state beyond the tensors that are used; refuse one that lacks some of those."""
    used = set(used)
    missing = sorted(used - set(state))
    if missing:
        raise InputError(f"{where} lacks {len(missing)} of {len(used)} tensors ({few(missing)})")
    return {name: tensor for name, tensor in state.items() if name not in used}


def bert_from(source: str, config: ModelConfig, part: Part | None) -> tuple[TextEncoder, Part | None]:
    """The text encoder: shape and tokenizer from `source`, tensors from a checkpoint if one has them."""
    folder = Path(source).expanduser()
    if source.startswith(PACKAGE) or not folder.is_dir():
        encoder = TextEncoder.from_source(source, config.query, weights=part is None)
    else:
        files = [folder / name for name in (MODEL_FILE, "pytorch_model.bin") if (folder / name).is_file()]
        if part is None:
            if not files:
                raise InputError(f"{folder} has neither {MODEL_FILE} nor pytorch_model.bin")
            part = parts_of(files[0]).get("text")
        if part is None:
            raise InputError(f"{files[0]} does not hold a BERT")
        encoder = TextEncoder(shaped(folder, part), tokenizer(folder), config.query)
    if part is not None:
        copy_tensors(encoder.bert, part.tensors, part.where)
    return encoder, part


def shaped(folder: Path, part: Part) -> BertModel:
    """A BERT as its folder's configuration has it, or else as its tensors show."""
    files = [folder / name for name in ("config.json", "bert_config.json") if (folder / name).is_file()]
    try:
        config = BertConfig.from_json_file(files[0]) if files else BertConfig(**part.shape)
        return BertModel(config, add_pooling_layer=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{files[0] if files else folder} describes no BERT ({error})") from error


def tokenizer(folder: Path) -> Any:
    """From today's files, or from a lone vocabulary (lower case, as bert-base-uncased)."""
    vocabulary, modern = folder / "vocab.txt", ("tokenizer.json", "tokenizer_config.json")
    try:
        if vocabulary.is_file() and not any((folder / name).is_file() for name in modern):
            return BertTokenizer(vocab=str(vocabulary))
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare exceptions
        raise InputError(
            f"{folder} has no tokenizer that can be read ({str(error).splitlines()[0]})"
        ) from error


def convert(files: Sequence[Path], text: str | None, config: ModelConfig) -> tuple[PPMN, list[str]]:
    """A model from the parts that the files hold, the others fresh, and a report of what came from where."""
    parts: dict[str, Part] = {}
    for file in files:
        for name, part in parts_of(file).items():
            if name in parts:
                raise InputError(f"both {parts[name].where} and {part.where} hold the {name} part")
            parts[name] = part
    if "head" in parts and config.variant != "released":
        raise InputError(f"{parts['head'].where} holds a head of the variant released, not {config.variant}")
    config = replace(config, **parts["head"].shape) if "head" in parts else config
    if "image" in parts:
        config = replace(config, image=replace(config.image, **parts["image"].shape))
    config = replace(config, text=TextConfig(text or config.text.source))
    try:
        text_encoder, bert = bert_from(config.text.source, config, parts.get("text"))
    except InputError as error:
        raise error if text else InputError(f"{error}; name a BERT folder with --text") from error
    model = PPMN(build_image_encoder(config), text_encoder, config)
    if "image" in parts:
        fresh = PYRAMID if _is_torchvision(config) else ()
        copy_tensors(
            model.get_submodule("image_encoder"), parts["image"].tensors, parts["image"].where, fresh
        )
    if "head" in parts:
        copy_tensors(model.head, parts["head"].tensors, parts["head"].where)
    return model, report(parts | ({"text": bert} if bert else {}), config)


def _is_torchvision(config: ModelConfig) -> bool:
    return isinstance(config.image, ResNetConfig) and config.image.form == "torchvision"


def report(parts: Mapping[str, Part], config: ModelConfig) -> list[str]:
    """Where each part came from, and by name what was left behind."""
    lines = []
    for name in ("image", "text", "head"):
        part = parts.get(name)
        if part is None:
            lines.append(
                f"{name}: {'from ' + config.text.source if name == 'text' else 'fresh, not trained'}"
            )
            continue
        lines.append(f"{name}: {count(part.tensors)} from {part.where}")
        if name == "image" and _is_torchvision(config):
            lines.append("  its feature pyramid is fresh, not trained")
        if part.left:
            lines.append(f"  left behind as unused: {count(part.left)}")
            patterns = Counter(re.sub(r"\d+", "*", name) for name in part.left)
            lines += [f"    {pattern}" + (f" ({n})" if n > 1 else "") for pattern, n in patterns.items()]
    return lines


def count(tensors: Mapping[str, Tensor]) -> str:
    return f"{len(tensors)} tensors, {sum(t.numel() for t in tensors.values()) / 1e6:.2f} M values"
