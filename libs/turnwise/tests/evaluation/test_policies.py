"""The policy that the options name: what is refused before anything is asked or written."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from turnwise.command import run_command
from turnwise.config import ConfigError
from turnwise.evaluation.command import evaluate_method
from turnwise.evaluation.options import EvalOptions
from turnwise.evaluation.policies import Loaded, load, make_policy
from turnwise.method import MethodOptions
from turnwise.testing import byte_tokenizer
from turnwise.testing.tokens import TEMPLATE

from evaluation.fakes import Echo, EchoOptions

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class Looking(Echo):
    """Echo with a tool."""

    def tools(self) -> Any:
        return [TOOL]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tokenizer and the configuration of a checkpoint, no weights."""
    path = tmp_path / "policy"
    byte_tokenizer().save_pretrained(path)
    (path / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 300}')
    return path


def options(folder: Path, **more: Any) -> EvalOptions:
    return EvalOptions(hf_checkpoint=str(folder), sglang_url="http://127.0.0.1:9", **more)


def test_a_server_needs_no_weights_but_the_length_of_a_conversation(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--max-context-len: .* no max_position_embeddings"):
        load(options(folder), Echo(EchoOptions()))
    found = load(options(folder, max_context_len=64), Echo(EchoOptions()))
    assert found is not None and (found.context, found.vocabulary, found.weights) == (64, 300, None)
    config = {"model_type": "qwen3", "max_position_embeddings": 32}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="--max-context-len 64: the policy has 32 positions"):
        load(options(folder, max_context_len=64), Echo(EchoOptions()))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_folders_own_code_is_never_run(
    folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": {"AutoConfig": "x.Y"}}))
    (folder / "x.py").write_text("import sys; sys.modules['was_run'] = sys")
    argv = ["--hf-checkpoint", str(folder), "--sglang-url", "http://127.0.0.1:9"]
    argv += ["--run-dir", str(tmp_path / "run")]
    assert run_command(lambda given: evaluate_method(Echo, given), argv) == 2
    told = capsys.readouterr().err
    assert "auto_map" in told and len(told.splitlines()) == 1
    assert "was_run" not in sys.modules and not (tmp_path / "run").exists()


def test_the_tool_format_is_found_in_the_template_or_asked_for() -> None:
    tokenizer, method = byte_tokenizer(), Looking(EchoOptions())
    plain = EvalOptions(hf_checkpoint="p", sglang_url="http://127.0.0.1:9")
    found: Any = make_policy(plain, method, Loaded(None, tokenizer, 100))
    assert found.tool_format == "qwen25"
    silent = tokenizer.__class__(tokenizer_object=tokenizer.backend_tokenizer)
    silent.chat_template = TEMPLATE.replace("<tool_call>", "").replace("</tool_call>", "")
    with pytest.raises(ConfigError, match="tool-format: the chat template tells none"):
        make_policy(plain, method, Loaded(None, silent, 100))
    named = Looking(EchoOptions(**MethodOptions(tool_format="llama3").model_dump()))
    given: Any = make_policy(plain, named, Loaded(None, tokenizer, 100))
    assert given.tool_format == "llama3"
