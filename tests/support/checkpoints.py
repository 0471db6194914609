"""Checkpoints of other projects, at full size with constant tensors that take no space."""

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from ppmn.config import ModelConfig, ResNetConfig
from ppmn.convert import key_maps
from ppmn.model.network import Head
from ppmn.model.resnet import ResNetFPN

State = dict[str, Tensor]
NARROW = ResNetConfig(depth=50, width=8)  # with 256 channels in the pyramid
UNUSED_IN_ROUND = {
    **{f"attention.attn.in_proj_{p}": s for p, s in (("weight", (768, 256)), ("bias", (768,)))},
    **{f"{n}.{p}": s for n in ("attention.attn.out_proj", "kernel_update_conv.fc_layer")
       for p, s in (("weight", (256, 256)), ("bias", (256,)))},
    **{f"kernel_update_conv.{n}.{p}": s for n in ("dynamic_layer", "input_layer")
       for p, s in (("weight", (512, 256)), ("bias", (512,)))},
    **{f"kernel_update_conv.{n}_gate.{p}": s for n in ("input", "update")
       for p, s in (("weight", (256, 256)), ("bias", (256,)))},
    **{f"{n}.{p}": (256,) for p in ("weight", "bias") for n in (
        "attention_norm", "ffn_norm", "cls_fcs.1", *(f"kernel_update_conv.{k}" for k in (
            "norm_in", "norm_out", "input_norm_in", "input_norm_out", "fc_norm")))},
    "ffn.layers.0.0.weight": (2048, 256), "ffn.layers.0.0.bias": (2048,),
    "ffn.layers.1.weight": (256, 2048), "ffn.layers.1.bias": (256,),
    "cls_fcs.0.weight": (256, 256), "fc_cls.weight": (80, 256), "fc_cls.bias": (80,),
}  # fmt: skip


class Values:
    """Tensors of any shape that take no space, each with a value of its own."""

    def __init__(self) -> None:
        self.next = 0

    def __call__(self, shape: Any) -> Tensor:
        self.next += 1
        return torch.tensor(self.next / 4096).expand(tuple(shape))


def shapes(module: torch.nn.Module) -> dict[str, Any]:
    """The shape of each tensor of a module."""
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def head_state(rounds: int = 3) -> State:
    """The released head with the parameters that it does not use."""
    value, ours = Values(), shapes(Head(256, 768, ModelConfig(rounds=rounds)))
    state = {theirs: value(ours[name]) for name, theirs in key_maps.released_head_names(rounds).items()}
    for part, shape in (
        ("0.weight", (256, 256, 1, 1)),
        ("0.bias", (256,)),
        ("1.weight", (256,)),
        ("1.bias", (256,)),
    ):
        state[f"{key_maps.NECK_PREFIX}aux_convs.{part}"] = value(shape)
    for n in range(rounds):
        state[f"{key_maps.ROUND_PREFIX}{n}.topk_attn.attn.in_proj_weight"] = value((768, 256))
        state[f"{key_maps.ROUND_PREFIX}{n}.topk_attn.attn.in_proj_bias"] = value((768,))
        state |= {
            f"{key_maps.ROUND_PREFIX}{n}.{name}": value(shape) for name, shape in UNUSED_IN_ROUND.items()
        }
    return state


def image_state(config: ResNetConfig) -> State:
    """detectron2's panoptic FPN with some of its other heads."""
    value, ours = Values(), shapes(ResNetFPN(config, True))
    state = {theirs: value(ours[name]) for name, theirs in key_maps.detectron2_names(config.depth).items()}
    state |= {
        "pixel_mean": value((3, 1, 1)),
        "proposal_generator.rpn_head.conv.weight": value((256, 256, 3, 3)),
    }
    return state | {"sem_seg_head.predictor.weight": value((54, 128, 1, 1))}


def torchvision_state(depth: int) -> State:
    """torchvision's ResNet with its classifier."""
    value, ours = Values(), shapes(ResNetFPN(ResNetConfig(depth=depth, form="torchvision"), True))
    state = {theirs: value(ours[name]) for name, theirs in key_maps.torchvision_names(depth).items()}
    return state | {
        "bn1.num_batches_tracked": torch.tensor(7),
        "fc.weight": value((1000, 512)),
        "fc.bias": value((1000,)),
    }


def bert_state(config: BertConfig, old: bool) -> State:
    """BERT with unused layers: the released code's cross layers, or the heads and names of the old layout."""
    value = Values()
    with torch.device("meta"):
        ours = shapes(BertModel(config))
    state = {f"bert.{name}": value(shape) for name, shape in ours.items()}
    if not old:
        return state | {
            "bert.encoder.x_layers.0.visual_attention.att.query.weight": value((768, 768)),
            "bert.encoder.r_layers.2.attention.output.LayerNorm.weight": value((768,)),
            "bert.encoder.visn_fc.visn_fc.weight": value((768, 50176)),
        }
    state |= {
        "cls.predictions.bias": value((config.vocab_size,)),
        "cls.seq_relationship.weight": value((2, 768)),
    }
    spelling = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {
        next((n.replace(a, b) for a, b in spelling.items() if n.endswith(a)), n): t for n, t in state.items()
    }


def checkpoint(**states: State) -> dict[str, Any]:
    """The released training checkpoint, with these states."""
    wrapped = {
        f"{part}_state": OrderedDict((f"module.{name}", tensor) for name, tensor in state.items())
        for part, state in states.items()
    }
    score = {"best_val_score": np.float64(0.594), "history": np.arange(6.0).reshape(2, 3)}
    return {"epoch": 13, **wrapped, "optimizer_state": {"state": {}, "param_groups": []}, **score}
