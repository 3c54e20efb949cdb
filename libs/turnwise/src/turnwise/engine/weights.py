"""Weights on their way to an SGLang server.

Through memory, as slime sends them: tensors of up to `BUCKET_BYTES` together lie flat, one after
the other, in one tensor of bytes on the server's device, and what goes over HTTP is a pickle of a
handle of it (CUDA IPC) with a name, a dtype, a shape and a place for each (`load_format`
`flattened_bucket` of `/update_weights_from_tensor`). On a CPU the bytes are in the pickle.

From disk: a folder of safetensors, for `/update_weights_from_disk`.

SGLang unpickles classes of a few modules alone (`SafeUnpickler` of 0.5.15); what is written here
are torch's own and `types.SimpleNamespace`, so that this process needs no SGLang.
"""

from __future__ import annotations

import base64
import io
import pickle
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

BUCKET_BYTES = 512 * 2**20
"""What is copied at a time: slime's default."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf", ".index.json")

NamedTensors = Iterable[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some weights as they are sent.

    Attributes:
        handle: What goes into `serialized_named_tensors`, base64.
        memory: uint8[n], what the handle points to; it must live until the server has answered.
        last: Whether no further one follows.
    """

    handle: str
    memory: Tensor
    last: bool


def buckets(
    named: NamedTensors, *, dtype: torch.dtype, device: torch.device, size: int = BUCKET_BYTES
) -> Iterator[Bucket]:
    """Packs weights, each bucket when the one before was sent.

    Args:
        named: By transformers' names, on any device, in any dtype; each is copied before the next
            is taken.
        dtype: What the server computes in.
        device: The server's.
        size: Bytes of a bucket; a larger tensor is a bucket of its own.
    """
    held: list[tuple[str, Tensor]] = []
    length = 0
    for name, tensor in named:
        need = tensor.numel() * dtype.itemsize
        if held and length + need > size:
            yield _bucket(held, last=False)
            held, length = [], 0
        held.append((name, tensor.detach().to(device, dtype, copy=True)))
        length += need
    if held:
        yield _bucket(held, last=True)


def _bucket(named: list[tuple[str, Tensor]], *, last: bool) -> Bucket:
    memory = torch.cat([tensor.reshape(-1) for _, tensor in named]).view(torch.uint8)
    places, begin = [], 0
    for name, tensor in named:
        end = begin + tensor.numel() * tensor.element_size()
        places.append(
            SimpleNamespace(
                name=name,
                shape=tensor.shape,
                dtype=tensor.dtype,
                start_idx=begin,
                end_idx=end,
                numel=end - begin,
            )
        )
        begin = end
    return Bucket(_pickled({"flattened_tensor": memory, "metadata": places}), memory, last)


def _pickled(content: dict[str, Any]) -> str:
    stream = io.BytesIO()
    on_gpu = content["flattened_tensor"].is_cuda
    # The one writes a handle of the memory, the other what is in it.
    kind = ForkingPickler if on_gpu else pickle.Pickler
    kind(stream, pickle.HIGHEST_PROTOCOL).dump(content)
    return base64.b64encode(stream.getvalue()).decode("ascii")


def write_folder(folder: Path, named: NamedTensors, *, dtype: torch.dtype, like: Path) -> None:
    """Writes weights as a folder that SGLang, vLLM and transformers read.

    Args:
        folder: Exists and is empty.
        like: A folder of the same policy, whose configuration and tokenizer are copied.
    """
    from safetensors.torch import save_file

    tensors = {name: _on_host(tensor, dtype) for name, tensor in named}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for file in like.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            shutil.copy(file, folder / file.name)


def on_host(named: NamedTensors, dtype: torch.dtype) -> list[tuple[str, Tensor]]:
    """Copies of weights that stay as they are while the model is trained on."""
    return [(name, _on_host(tensor, dtype)) for name, tensor in named]


def _on_host(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to("cpu", dtype, copy=True).contiguous()
