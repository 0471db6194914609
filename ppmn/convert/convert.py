"""`ppmn convert`: other projects' checkpoints -> a model folder."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertModel, BertTokenizer

from ppmn.baselines.two_stage_folder import save_two_stage
from ppmn.config import ModelConfig, ResNetConfig, TextConfig
from ppmn.convert import key_maps
from ppmn.convert.two_stage_checkpoint import convert_two_stage, two_stage_state
from ppmn.convert.unpickle import read_checkpoint, tensors_of
from ppmn.errors import InputError
from ppmn.model.folder import MODEL_FILE, abbreviate, build_image_encoder, copy_tensors, save_model
from ppmn.model.locate import PACKAGE_PREFIX, resolve_source
from ppmn.model.network import PPMN
from ppmn.model.text import TextEncoder

_UNUSED_HEAD = re.compile(
    r"rpn_head\.localization_fpn\.aux_convs\..*"
    r"|roi_head\.mask_head\.\d+\.(attention|attention_norm|kernel_update_conv|ffn|ffn_norm|cls_fcs|fc_cls)\..*"
)
_PYRAMID_NAMES = ("lateral.", "output.")


@dataclass(frozen=True)
class Part:
    """The head or one encoder of a checkpoint."""

    where: str  # the file it was read from
    tensors: dict[str, Tensor]  # under our names
    unused: dict[str, Tensor]
    shape: Mapping[str, Any]  # fields of the configuration that the tensors determine


def parts_of(file: Path) -> dict[str, Part]:
    """The parts that a file holds, "head", "image" or "text", recognised by the names of its tensors."""
    raw, where = read_checkpoint(file), str(file)
    if isinstance(raw, Mapping) and "model_state" in raw:
        parts = {"head": _head_part(tensors_of(raw["model_state"], where), where)}
        if "fpn_model_state" in raw:
            parts["image"] = _detectron2_part(tensors_of(raw["fpn_model_state"], where), where)
        if "bert_model_state" in raw:
            parts["text"] = _text_part(tensors_of(raw["bert_model_state"], where), where)
        return parts
    state = tensors_of(raw["model"] if isinstance(raw, Mapping) and "model" in raw else raw, where)
    if any(name.startswith((key_maps.MATCHING_PREFIX, key_maps.ROUND_PREFIX)) for name in state):
        return {"head": _head_part(state, where)}
    if any(name.startswith("backbone.bottom_up.") for name in state):
        return {"image": _detectron2_part(state, where)}
    if "layer1.0.conv1.weight" in state:
        return {"image": _torchvision_part(state, where)}
    if any(map(key_maps.bert_name, state)):
        return {"text": _text_part(state, where)}
    raise InputError(
        f"{where} holds neither a released PPMN nor detectron2's or torchvision's ResNet nor a BERT, "
        f"but {len(state)} tensors ({abbreviate(list(state))})"
    )


def _head_part(state: dict[str, Tensor], where: str) -> Part:
    rounds = key_maps.released_rounds(state)
    unused = _unused(state, key_maps.released_head_used(rounds), where)
    _refuse_unknown([name for name in unused if not _UNUSED_HEAD.fullmatch(name)], where, "released PPMN")
    tensors = key_maps.released_head(state, rounds)
    shape = {"rounds": rounds, "channels": len(tensors["project_phrases.weight"])}
    return Part(where, tensors, unused, shape)


def _detectron2_part(state: dict[str, Tensor], where: str) -> Part:
    depth = key_maps.resnet_depth(state, where)
    unused = _unused(state, key_maps.detectron2_names(depth).values(), where)
    _refuse_unknown([name for name in unused if name.startswith("backbone.")], where, "ResNet-FPN")
    tensors = key_maps.detectron2_encoder(state, depth)
    channels = len(tensors["lateral.0.weight"])
    shape = {"depth": depth, "form": "detectron2", "norm": "frozen", "channels": channels}
    return Part(where, tensors, unused, shape | {"width": len(tensors["stem.conv.weight"])})


def _torchvision_part(state: dict[str, Tensor], where: str) -> Part:
    depth = key_maps.resnet_depth(state, where)
    names = key_maps.torchvision_names(depth)
    unused = _unused(state, names.values(), where)
    tensors = {ours: state[theirs] for ours, theirs in names.items()}
    shape = {"depth": depth, "form": "torchvision", "norm": "frozen"}
    return Part(where, tensors, unused, shape | {"width": len(tensors["stem.conv.weight"])})


def _text_part(state: dict[str, Tensor], where: str) -> Part:
    ours = {name: key_maps.bert_name(name) for name in state}
    tensors = {new: state[name] for name, new in ours.items() if new is not None}
    unused = {name: state[name] for name, new in ours.items() if new is None}
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
        raise InputError(f"{where} holds no complete BERT (at {error})") from error
    return Part(where, tensors, unused, shape)


def _unused(state: dict[str, Tensor], used: Iterable[str], where: str) -> dict[str, Tensor]:
    """The tensors of a state that are not used; a state that lacks some of the used ones is refused."""
    used = set(used)
    missing = sorted(used - set(state))
    if missing:
        raise InputError(f"{where} lacks {len(missing)} of {len(used)} tensors ({abbreviate(missing)})")
    return {name: tensor for name, tensor in state.items() if name not in used}


def _refuse_unknown(names: list[str], where: str, network: str) -> None:
    if names:
        raise InputError(f"{where} holds {len(names)} tensors that no {network} has ({abbreviate(names)})")


def bert_from(source: str, config: ModelConfig, part: Part | None) -> tuple[TextEncoder, Part | None]:
    """The text encoder: shape and tokenizer from `source`, tensors from a checkpoint that has them."""
    folder = Path(source).expanduser()
    if source.startswith(PACKAGE_PREFIX) or not folder.is_dir():
        encoder = TextEncoder.from_source(source, config.query, weights=part is None)
    else:
        files = [folder / name for name in (MODEL_FILE, "pytorch_model.bin") if (folder / name).is_file()]
        if part is None:
            if not files:
                raise InputError(f"{folder} has neither {MODEL_FILE} nor pytorch_model.bin")
            part = parts_of(files[0]).get("text")
        if part is None:
            raise InputError(f"{files[0]} does not hold a BERT")
        encoder = TextEncoder(_bert_of_shape(folder, part), _tokenizer_from(folder), config.query)
    if part is not None:
        copy_tensors(encoder.bert, part.tensors, part.where)
    return encoder, part


def _bert_of_shape(folder: Path, part: Part) -> BertModel:
    """A BERT of the shape in its folder's configuration, or of the shape of its tensors."""
    files = [folder / name for name in ("config.json", "bert_config.json") if (folder / name).is_file()]
    try:
        config = BertConfig.from_json_file(files[0]) if files else BertConfig(**part.shape)
        return BertModel(config, add_pooling_layer=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{files[0] if files else folder} describes no BERT ({error})") from error


def _tokenizer_from(folder: Path) -> Any:
    """The tokenizer of a folder, or one of its vocabulary alone (lower case, as bert-base-uncased)."""
    vocabulary, configuration = folder / "vocab.txt", ("tokenizer.json", "tokenizer_config.json")
    try:
        if vocabulary.is_file() and not any((folder / name).is_file() for name in configuration):
            return BertTokenizer(vocab=str(vocabulary))
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare exceptions
        raise InputError(
            f"the tokenizer of {folder} cannot be read ({str(error).splitlines()[0]})"
        ) from error


def convert_to_folder(files: Sequence[Path], text: str | None, config: ModelConfig, out: Path) -> list[str]:
    """Write a model folder of what the files hold, a PPMN or the two-stage baseline, and return a report."""
    for file in files:
        state = two_stage_state(file)
        if state is None:
            continue
        if len(files) > 1:
            raise InputError(f"{file} holds the whole two-stage baseline; convert it without other files")
        tokenizer = _tokenizer_from(Path(resolve_source(text or config.text.source)))
        baseline, report = convert_two_stage(state, tokenizer, str(file))
        save_two_stage(baseline, tokenizer, out)
        return report
    model, report = convert(files, text, config)
    save_model(model, out)
    return report


def convert(files: Sequence[Path], text: str | None, config: ModelConfig) -> tuple[PPMN, list[str]]:
    """A model from the parts that the files hold, the others untrained, and a report of their sources."""
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
        config = replace(config, image=_resnet(config, parts["image"]))
    config = replace(config, text=TextConfig(text or config.text.source))
    try:
        text_encoder, bert = bert_from(config.text.source, config, parts.get("text"))
    except InputError as error:
        raise error if text else InputError(f"{error}; name a BERT folder with --text") from error
    model = PPMN(build_image_encoder(config), text_encoder, config)
    if "image" in parts:
        untrained = _PYRAMID_NAMES if _is_torchvision(config) else ()
        encoder = model.get_submodule("image_encoder")
        copy_tensors(encoder, parts["image"].tensors, parts["image"].where, untrained)
    if "head" in parts:
        copy_tensors(model.head, parts["head"].tensors, parts["head"].where)
    return model, _report(parts | ({"text": bert} if bert else {}), config)


def _resnet(config: ModelConfig, part: Part) -> ResNetConfig:
    """The ResNet of a configuration, of the shape that a file holds."""
    if not isinstance(config.image, ResNetConfig):
        ours = config.image.kind
        raise InputError(f"{part.where} holds a ResNet, and the image encoder of the preset is {ours}")
    return replace(config.image, **part.shape)


def _is_torchvision(config: ModelConfig) -> bool:
    return isinstance(config.image, ResNetConfig) and config.image.form == "torchvision"


def _report(parts: Mapping[str, Part], config: ModelConfig) -> list[str]:
    """Where each part came from, and the names of the tensors that are not used."""
    lines = []
    for name in ("image", "text", "head"):
        part = parts.get(name)
        if part is None:
            lines.append(f"{name}: {f'from {config.text.source}' if name == 'text' else 'untrained'}")
            continue
        lines.append(f"{name}: {_count(part.tensors)} from {part.where}")
        if name == "image" and _is_torchvision(config):
            lines.append("  its feature pyramid is untrained")
        if part.unused:
            lines.append(f"  not used: {_count(part.unused)}")
            patterns = Counter(re.sub(r"\d+", "*", name) for name in part.unused)
            lines += [f"    {pattern}" + (f" ({n})" if n > 1 else "") for pattern, n in patterns.items()]
    return lines


def _count(tensors: Mapping[str, Tensor]) -> str:
    return f"{len(tensors)} tensors, {sum(t.numel() for t in tensors.values()) / 1e6:.2f} M values"
