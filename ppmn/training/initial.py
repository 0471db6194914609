"""The network that a training run starts from."""

import logging
from pathlib import Path

from ppmn.config import BackboneConfig, MethodConfig, TrainConfig
from ppmn.errors import InputError
from ppmn.grounding.methods import METHODS
from ppmn.model.backbone import BackboneFPN
from ppmn.model.dinov2 import DINOv2FPN
from ppmn.model.folder import base_weights, build_image_encoder, build_model, copy_tensors, load_model
from ppmn.model.method import Method

_log = logging.getLogger(__name__)


def initial_model(config: TrainConfig, init: Path | None = None) -> Method:
    """A new network, or that of a model folder adapted to `config.model`; frozen parts take no gradient."""
    model: Method
    if init is not None:
        model = _adapted(load_model(init, METHODS), config.model)
    elif config.lr_image == 0 and not _has_image_weights(config.model):
        raise InputError("the image encoder is frozen (lr_image is 0): give --init a model that has one")
    else:
        model = build_model(config.model, METHODS)
    _freeze_image_encoder(model, config)
    model.text_encoder.requires_grad_(config.lr_text > 0)
    if config.freeze_neck:
        _freeze_neck(model)
    if config.freeze_embeddings:
        model.text_encoder.bert.get_input_embeddings().requires_grad_(False)
    model.prepare(initialised=init is not None)
    return model


def _freeze_neck(model: Method) -> None:
    try:
        model.get_submodule("head.neck").requires_grad_(False)
    except AttributeError as error:
        method = model.config.method
        raise InputError(f"freeze_neck is true, but the method {method!r} has no neck to freeze") from error


def _has_image_weights(config: MethodConfig) -> bool:
    return "image" in base_weights(config) or isinstance(config.image, BackboneConfig)


def _freeze_image_encoder(model: Method, config: TrainConfig) -> None:
    encoder, trained = model.image_encoder, config.lr_image > 0
    model.get_submodule("image_encoder").requires_grad_(trained)
    if isinstance(encoder, DINOv2FPN):
        if trained and not encoder.config.trainable_blocks:
            raise InputError("lr_image is above 0, but model.image.trainable_blocks is 0")
        encoder.vit.requires_grad_(False)
        encoder.trainable.requires_grad_(trained)
        encoder.adapter.requires_grad_(not config.freeze_neck)
    if isinstance(encoder, BackboneFPN):
        if trained and not encoder.config.trainable_layers:
            raise InputError("lr_image is above 0, but model.image.trainable_layers is 0")
        encoder.set_trained(trained)
        encoder.adapter.requires_grad_(not config.freeze_neck)


def _adapted(model: Method, config: MethodConfig) -> Method:
    """A model under another configuration: its encoders, and its other tensors that still fit."""
    if model.config == config:
        return model
    adapted = METHODS[config.method](build_image_encoder(config, weights=False), model.text_encoder, config)
    adapted.text_encoder.query = config.query
    theirs = model.get_submodule("image_encoder").state_dict()
    copy_tensors(adapted.get_submodule("image_encoder"), theirs, "the model given to --init")
    encoders = ("image_encoder.", "text_encoder.")
    own = {n: t for n, t in adapted.state_dict().items() if not n.startswith(encoders)}
    fitting = {n: t for n, t in model.state_dict().items() if n in own and own[n].shape == t.shape}
    adapted.load_state_dict(fitting, strict=False)
    _log.info(f"{len(own) - len(fitting)} of the {len(own)} tensors beside the encoders start fresh")
    return adapted
