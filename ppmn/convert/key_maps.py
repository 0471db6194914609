"""Names of tensors in other projects' checkpoints, and their names here."""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from ppmn.errors import InputError
from ppmn.model.resnet import BLOCKS_PER_STAGE

NECK_PREFIX, MATCHING_PREFIX, ROUND_PREFIX = "rpn_head.localization_fpn.", "rpn_head.", "roi_head.mask_head."
_PAIR = ("weight", "bias")
_NORM = ("weight", "bias", "running_mean", "running_var")


def released_head_names(rounds: int) -> dict[str, str]:
    """Our names of the head's parameters -> their names in the released checkpoint."""
    names = {
        "project_phrases.weight": f"{MATCHING_PREFIX}init_kernels.weight",
        "project_phrases.bias": f"{MATCHING_PREFIX}init_kernels.bias",
        **_pair("neck.merge", f"{NECK_PREFIX}conv_pred.0"),
        **_pair("neck.norm", f"{NECK_PREFIX}conv_pred.1"),
    }
    for level, blocks in enumerate((1, 1, 2, 3)):
        for block in range(blocks):
            theirs = f"{NECK_PREFIX}convs_all_levels.{level}."
            names |= _pair(f"neck.levels.{level}.{block}.conv", f"{theirs}{4 * block}")
            names |= _pair(f"neck.levels.{level}.{block}.norm", f"{theirs}{4 * block + 1}")
    for index in range(rounds + 1):
        theirs = MATCHING_PREFIX if index == 0 else f"{ROUND_PREFIX}{index - 1}."
        names[f"project_pixels.{index}.conv.weight"] = f"{theirs}loc_convs.0.weight"
        names |= _pair(f"project_pixels.{index}.norm", f"{theirs}loc_convs.1")
    for index in range(rounds):
        ours, theirs = f"rounds.{index}.", f"{ROUND_PREFIX}{index}."
        names |= _pair(f"{ours}aggregate.out", f"{theirs}topk_attn.attn.out_proj")
        names |= _pair(f"{ours}norm1", f"{theirs}topk_norm")
        names |= _pair(f"{ours}norm2", f"{theirs}ffn_norm_pre")
        names |= _pair(f"{ours}ffn.0", f"{theirs}ffn_pre.layers.0.0")
        names |= _pair(f"{ours}ffn.2", f"{theirs}ffn_pre.layers.1")
        names |= _pair(f"{ours}mlp.9", f"{theirs}fc_mask")
        for layer in range(3):
            names[f"{ours}mlp.{3 * layer}.weight"] = f"{theirs}mask_fcs.{3 * layer}.weight"
            names |= _pair(f"{ours}mlp.{3 * layer + 1}", f"{theirs}mask_fcs.{3 * layer + 1}")
    return names


def released_rounds(names: Iterable[str]) -> int:
    """The number of rounds L of a released head."""
    found = [re.match(rf"{re.escape(ROUND_PREFIX)}(\d+)\.", name) for name in names]
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def released_head_used(rounds: int) -> set[str]:
    """Names of the released head's parameters that reach its output; the others are not used."""
    attention = {f"{ROUND_PREFIX}{n}.topk_attn.attn.in_proj_{part}" for n in range(rounds) for part in _PAIR}
    return attention | set(released_head_names(rounds).values())


def released_head(state: Mapping[str, Tensor], rounds: int) -> dict[str, Tensor]:
    """The released head's state under our names, without its key bias, which cancels."""
    head = {ours: state[theirs] for ours, theirs in released_head_names(rounds).items()}
    for index in range(rounds):
        ours, theirs = f"rounds.{index}.aggregate.", f"{ROUND_PREFIX}{index}.topk_attn.attn.in_proj_"
        query, key, value = state[f"{theirs}weight"].chunk(3)
        query_bias, _, value_bias = state[f"{theirs}bias"].chunk(3)
        head |= {f"{ours}query.weight": query, f"{ours}key.weight": key, f"{ours}value.weight": value}
        head |= {f"{ours}query.bias": query_bias, f"{ours}value.bias": value_bias}
    return head


def detectron2_names(depth: int) -> dict[str, str]:
    """Our names of the image encoder's tensors -> their names in detectron2's checkpoints."""
    names = _conv("stem", "backbone.bottom_up.stem.conv1")
    for stage, blocks in enumerate(BLOCKS_PER_STAGE[depth]):
        for block in range(blocks):
            ours, theirs = f"stages.{stage}.{block}.", f"backbone.bottom_up.res{stage + 2}.{block}."
            for index in range(2 if depth < 50 else 3):
                names |= _conv(f"{ours}convs.{index}", f"{theirs}conv{index + 1}")
            if block == 0 and (stage > 0 or depth >= 50):
                names |= _conv(f"{ours}shortcut", f"{theirs}shortcut")
        names |= _pair(f"lateral.{stage}", f"backbone.fpn_lateral{stage + 2}")
        names |= _pair(f"output.{stage}", f"backbone.fpn_output{stage + 2}")
    return names


def detectron2_encoder(state: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    """detectron2's ResNet-FPN under our names."""
    return {ours: state[theirs] for ours, theirs in detectron2_names(depth).items()}


def torchvision_names(depth: int) -> dict[str, str]:
    """Our names of the ResNet's tensors -> their names in torchvision, which has no pyramid."""
    names = _conv("stem", "conv1", "bn1")
    for stage, blocks in enumerate(BLOCKS_PER_STAGE[depth]):
        for block in range(blocks):
            ours, theirs = f"stages.{stage}.{block}.", f"layer{stage + 1}.{block}."
            for index in range(2 if depth < 50 else 3):
                names |= _conv(f"{ours}convs.{index}", f"{theirs}conv{index + 1}", f"{theirs}bn{index + 1}")
            if block == 0 and (stage > 0 or depth >= 50):
                names |= _conv(f"{ours}shortcut", f"{theirs}downsample.0", f"{theirs}downsample.1")
    return names


def resnet_depth(names: Iterable[str], where: str) -> int:
    """The depth of a ResNet, by the number of its blocks, in detectron2's names or torchvision's."""
    pattern = re.compile(r"(?:backbone\.bottom_up\.res|layer)(\d)\.(\d+)\.conv(\d)\.weight")
    found = [match.groups() for name in names if (match := pattern.fullmatch(name))]
    stages = sorted({stage for stage, _, _ in found})
    blocks = tuple(1 + max(int(b) for s, b, _ in found if s == stage) for stage in stages)
    convs = max((int(conv) for _, _, conv in found), default=0)
    for depth, expected in BLOCKS_PER_STAGE.items():
        if blocks == expected and convs == (2 if depth < 50 else 3):
            return depth
    depths = ", ".join(map(str, BLOCKS_PER_STAGE))
    raise InputError(f"{where} holds a ResNet of {blocks} blocks; supported are the depths {depths}")


def bert_name(name: str) -> str | None:
    """The current name of a BERT's tensor without prefixes; None for tensors outside of the encoder."""
    match = re.fullmatch(r"(?:.*\.)?((?:embeddings|encoder\.layer)\..*)", name)
    if not match or match[1].endswith("position_ids"):
        return None
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", match[1]))


def _conv(ours: str, theirs: str, norm: str = "") -> dict[str, str]:
    parts = {f"{ours}.norm.{part}": f"{norm or f'{theirs}.norm'}.{part}" for part in _NORM}
    return {f"{ours}.conv.weight": f"{theirs}.weight", **parts}


def _pair(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in _PAIR}
