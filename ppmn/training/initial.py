"""The network that a training run starts from."""

import logging
from pathlib import Path

from ppmn.config import ModelConfig, TrainConfig
from ppmn.errors import InputError
from ppmn.model.dinov2 import DINOv2FPN
from ppmn.model.folder import base_weights, build_image_encoder, build_model, copy_tensors, load_model
from ppmn.model.network import PPMN

_log = logging.getLogger(__name__)


def initial_model(config: TrainConfig, init: Path | None = None) -> PPMN:
    """A new network, or that of a model folder adapted to `config.model`; frozen parts take no gradient."""
    if init is not None:
        model = _adapted(load_model(init), config.model)
    elif config.lr_image == 0 and "image" not in base_weights(config.model):
        raise InputError("the image encoder is frozen (lr_image is 0): give --init a model that has one")
    else:
        model = build_model(config.model)
    model.get_submodule("image_encoder").requires_grad_(config.lr_image > 0)
    if isinstance(model.image_encoder, DINOv2FPN):
        if config.lr_image > 0 and not model.image_encoder.config.trainable_blocks:
            raise InputError("lr_image is above 0, but model.image.trainable_blocks is 0")
        model.image_encoder.vit.requires_grad_(False)
        model.image_encoder.trainable.requires_grad_(config.lr_image > 0)
        model.image_encoder.adapter.requires_grad_(not config.freeze_neck)
    model.text_encoder.requires_grad_(config.lr_text > 0)
    if config.freeze_neck:
        model.head.neck.requires_grad_(False)
    if config.freeze_embeddings:
        model.text_encoder.bert.embeddings.word_embeddings.requires_grad_(False)
    if config.model.pixels == 0:  # nothing is aggregated
        for refine in model.head.rounds:
            refine.aggregate.requires_grad_(False)
    return model


def _adapted(model: PPMN, config: ModelConfig) -> PPMN:
    """A model under another configuration: its encoders, and the tensors of its head that still fit."""
    if model.config == config:
        return model
    adapted = PPMN(build_image_encoder(config), model.text_encoder, config)
    adapted.text_encoder.query = config.query
    theirs = model.get_submodule("image_encoder").state_dict()
    copy_tensors(adapted.get_submodule("image_encoder"), theirs, "the model given to --init")
    own = adapted.head.state_dict()
    fitting = {n: t for n, t in model.head.state_dict().items() if n in own and own[n].shape == t.shape}
    adapted.head.load_state_dict(fitting, strict=False)
    _log.info(f"{len(own) - len(fitting)} of the head's {len(own)} tensors start fresh")
    return adapted
