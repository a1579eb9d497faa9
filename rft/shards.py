"""Whether the weights of a gpt-oss checkpoint are all there: its index, and the head of each safetensors file.

Milliseconds, whatever the size: of the data only a few bytes of each matrix are read. The format:
https://github.com/huggingface/safetensors#format. Standard library only, so that it works before a set-up.
"""

import json
import math
import os
from pathlib import Path
from typing import NamedTuple

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"  # the names that transformers and vLLM look for
BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}
BITS |= {"C64": 64, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8}
BITS |= {"F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
LARGEST_HEADER = 100_000_000  # bytes; of safetensors itself
SAMPLE, CONFIRM = 512, 1 << 24  # bytes that are read of each matrix; of one whose sample is zero
AGAIN = "download, copy or make the checkpoint again"


class Tensor(NamedTuple):
    """One tensor of a file: `shape`, the bytes `begin` to `end` of the file, and safetensors' name of its `dtype`."""

    file: Path
    shape: tuple[int, ...]
    begin: int
    end: int
    dtype: str


def require_complete(folder: Path, config: dict) -> None:
    """Raise ValueError unless every weight of a gpt-oss is in its file, of the config's shape, and not all zero.

    Args:
        folder: the checkpoint, in the layout of the hub.
        config: its config.json; shapes are compared where all sizes are in it.

    Raises:
        ValueError: found, wanted, repair; of an index, a file, or a tensor.
    """
    tensors = read_tensors(folder)
    for name, shape in expected_shapes(config).items():
        if name not in tensors:
            raise ValueError(f"{folder}: found no tensor {name}; wanted one of shape {shape}; {AGAIN}")
        if tensors[name].shape != shape:
            raise ValueError(
                f"{tensors[name].file}: found {name} of shape {tensors[name].shape}; wanted {shape}, as config.json "
                f"says; put config and weights of one model together"
            )
    zero = [name for name in sorted(tensors) if is_matrix(name, tensors[name]) and is_zero(tensors[name])]
    if zero:
        count = sum(is_matrix(name, tensor) for name, tensor in tensors.items())
        raise ValueError(
            f"{tensors[zero[0]].file}: found {len(zero)} of {count} weight matrices all zero ({zero[0]}), as an "
            f"interrupted download leaves them; wanted weights; {AGAIN}"
        )


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by name, from the heads of its files.

    Raises:
        ValueError: the index cannot be read or names what is not there; or a file is missing or not complete.
    """
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise ValueError(f"{folder}: found neither {SINGLE} nor {INDEX}; wanted one of them; {AGAIN}")
        return read_file(folder / SINGLE)
    places = read_index(index)
    missing = [name for name in sorted(set(places.values())) if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"{folder}: found no {', '.join(missing)}; wanted the {len(set(places.values()))} files that {INDEX} "
            f"names; {AGAIN}"
        )
    found = {name: read_file(folder / name) for name in sorted(set(places.values()))}
    for tensor, file in places.items():
        if tensor not in found[file]:
            raise ValueError(f"{folder / file}: found no tensor {tensor}, which {INDEX} names there; {AGAIN}")
    return {tensor: found[file][tensor] for tensor, file in places.items()}


def read_index(index: Path) -> dict[str, str]:
    """Names of tensors and their files. Raises ValueError for anything else."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not places or not all(isinstance(file, str) and file for file in places.values()):
            raise ValueError("names of files are missing")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ValueError(f"{index}: found no weight_map of tensors and files ({found}); {AGAIN}") from None
    return places


def read_file(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file by name.

    Raises:
        ValueError: the head cannot be read, tensors overlap or have gaps, or the file is shorter or longer than they.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, LARGEST_HEADER):
            pointer = start == b"version "
            found = "a pointer of Git LFS; git lfs pull" if pointer else f"a head of {length} bytes in {size}; {AGAIN}"
            raise ValueError(f"{file}: not a complete safetensors file, found {found}")
        try:
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            tensors = {name: _tensor(file, entry, 8 + length) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found = f"a head that cannot be read ({type(error).__name__}: {error})"
            raise ValueError(f"{file}: not a complete safetensors file, found {found}; {AGAIN}") from None
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1][2:4]):
        if tensor.begin != end:
            raise ValueError(f"{file}: found {name} at byte {tensor.begin}; wanted {end}, without gaps; {AGAIN}")
        end = tensor.end
    if end != size:
        raise ValueError(f"{file}: not a complete safetensors file, found {size:,} bytes; wanted {end:,}; {AGAIN}")
    return tensors


def _tensor(file: Path, entry: dict, start: int) -> Tensor:
    """One entry of a head. Raises ValueError where shape and type do not fill its bytes."""
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if end < begin or math.prod(shape) * BITS[entry["dtype"]] != 8 * (end - begin):
        raise ValueError(f"{entry['dtype']} of shape {shape} in {end - begin} bytes")
    return Tensor(file, shape, start + begin, start + end, entry["dtype"])


def is_matrix(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is one of weights, which training never leaves all zero, as it may biases and sinks."""
    return len(tensor.shape) > 1 and not name.endswith("bias")


def is_zero(tensor: Tensor) -> bool:
    """Whether all bytes are zero: some in the middle, then, up to 16 MiB, from the start."""
    descriptor = os.open(tensor.file, os.O_RDONLY)
    try:
        size = tensor.end - tensor.begin
        length = min(SAMPLE, size)
        if any(os.pread(descriptor, length, tensor.begin + (size - length) // 2)):
            return False
        return not any(os.pread(descriptor, min(size, CONFIRM), tensor.begin).strip(b"\0"))
    finally:
        os.close(descriptor)


def expected_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of weights of a gpt-oss (transformers' `GptOssForCausalLM`), packed or not.

    Empty where the config lacks a size.
    """
    names = ("hidden_size", "intermediate_size", "num_local_experts", "num_attention_heads", "num_key_value_heads")
    sizes = [config.get(name) for name in (*names, "vocab_size", "num_hidden_layers")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return {}
    hidden, inner, experts, heads, pairs, vocabulary, layers = sizes
    head = config.get("head_dim") or hidden // heads
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (heads * head, hidden),
        "self_attn.k_proj.weight": (pairs * head, hidden),
        "self_attn.v_proj.weight": (pairs * head, hidden),
        "self_attn.o_proj.weight": (hidden, heads * head),
        "self_attn.sinks": (heads,),
        "mlp.router.weight": (experts, hidden),
    }
    quantization = config.get("quantization_config") or {}
    if quantization.get("quant_method") == "mxfp4":  # 32 weights in 16 bytes and a scale
        for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            layer[f"mlp.experts.{name}_blocks"] = (experts, rows, columns // 32, 16)
            layer[f"mlp.experts.{name}_scales"] = (experts, rows, columns // 32)
    elif not quantization:  # of another method the layout is its own
        layer["mlp.experts.gate_up_proj"] = (experts, hidden, 2 * inner)
        layer["mlp.experts.down_proj"] = (experts, inner, hidden)
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes | {f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in layer.items()}
