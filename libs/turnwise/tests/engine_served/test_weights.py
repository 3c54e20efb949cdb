"""What is sent to a server is what the model holds, in pieces that a server can read."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from turnwise.engine.weights import buckets, on_host, write_folder
from turnwise.testing.policy_server import unflattened

CPU = torch.device("cpu")


def sent(named: Any, dtype: torch.dtype = torch.float32, **options: Any) -> list[list[Any]]:
    return [
        unflattened(base64.b64decode(bucket.handle))
        for bucket in buckets(named, dtype=dtype, device=CPU, **options)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_server_reads_the_weights_that_were_sent(model: Any, dtype: torch.dtype) -> None:
    (found,) = sent(model.named_parameters(), dtype)
    own = dict(model.named_parameters())
    assert [name for name, _ in found] == list(own)
    for name, tensor in found:
        assert tensor.dtype == dtype and torch.equal(tensor, own[name].to(dtype))


def test_weights_travel_in_buckets_of_a_bounded_size_and_the_last_one_says_so(model: Any) -> None:
    size = 3000
    made = list(buckets(model.named_parameters(), dtype=torch.float32, device=CPU, size=size))
    assert len(made) > 3 and [one.last for one in made] == [False] * (len(made) - 1) + [True]
    largest = max(p.numel() * 4 for p in model.parameters())
    assert all(one.memory.nbytes <= max(size, largest) for one in made)
    names = [name for part in sent(model.named_parameters(), size=size) for name, _ in part]
    assert names == [name for name, _ in model.named_parameters()]


def test_a_weight_that_is_valid_until_the_next_is_taken_is_sent_as_it_was() -> None:
    def reused() -> Any:
        memory = torch.zeros(4)
        for number in range(3):
            yield f"weight-{number}", memory.fill_(number)

    (found,) = sent(reused())
    assert [tensor.tolist() for _, tensor in found] == [[float(n)] * 4 for n in range(3)]
    kept = on_host(reused(), torch.float32)
    assert [tensor.tolist() for _, tensor in kept] == [[float(n)] * 4 for n in range(3)]


def test_a_bucket_leaves_torch_as_it_was_for_whoever_takes_it(model: Any) -> None:
    packed = buckets(model.named_parameters(), dtype=torch.float32, device=CPU, size=3000)
    next(packed)
    assert torch.is_grad_enabled()


def test_what_sglang_would_not_unpickle_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Blocked unsafe class loading"):
        unflattened(pickle.dumps(Path("x")))


def test_the_folder_of_weights_loads_as_a_policy(model: Any, policy: Path, tmp_path: Path) -> None:
    (tmp_path / "written").mkdir()
    (policy / "tokenizer.json").write_text("{}")
    changed = [(name, weight + 1) for name, weight in model.named_parameters()]
    write_folder(tmp_path / "written", changed, dtype=torch.float32, like=policy)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "written")
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight, dict(changed)[name])
    assert (tmp_path / "written" / "tokenizer.json").read_text() == "{}"
