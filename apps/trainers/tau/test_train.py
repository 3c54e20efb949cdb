"""The command: its flags, its refusals, and a whole run on a policy of a few thousand numbers."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from turnwise.command import run_command
from turnwise.local.command import train_method

from apps.trainers.tau.method import METHOD

SHIPPED_POLICY = METHOD.shipped
train = partial(train_method, "tau")

OPTIONS = {
    "agent_strategy", "engine_deadline_s", "env", "include_failing_ground_truth", "judge",
    "judge_cache", "keep_trajectory", "max_errors", "max_format_errors", "max_steps", "max_turns",
    "nl_assertions", "objective", "on_rewrite", "prompt", "several_calls", "strict", "task_set",
    "task_split", "tool_format", "user", "user_deadline_s",
}  # fmt: skip

TINY = [
    "--num-rollout", "2", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2",
    "--n-samples-per-eval-prompt", "1", "--eval-split", "tune", "--threads", "1",
]  # fmt: skip


def test_every_option_is_frozen() -> None:
    assert set(METHOD.Options.model_fields) == OPTIONS


def test_a_dry_run_prints_the_resolved_configuration_and_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert train(["--dry-run", "--lr", "0.5", "--run-dir", str(folder)]) == 0
    config = json.loads(capsys.readouterr().out)
    assert (config["lr"], config["eps_clip_high"], config["num_rollout"]) == (0.5, 0.28, 24)
    assert (config["tau"]["prompt"], config["tau"]["objective"]) == ("compact", "global-token-mean")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hf-checkpoint", "absent"], "--hf-checkpoint absent: no such folder"),
        (["--config", "absent.toml"], "absent.toml"),
        (["--resume", "--run-dir", "absent"], "absent"),
        (["--backend", "slime", "--config", "absent.toml"], "absent.toml"),
        (["--backend", "slim"], "slim"),
        (["--rollout-batchsize", "4"], "--rollout-batch-size"),
        (["--lr", "0"], "--lr: Input should be greater than 0"),
        (["--prompt", "full"], "the full prompt trains; use dev or test"),
        (["--env", "airline", "--prompt", "full", "--eval-split", "test"], "no training tasks"),
        (["--user.strategy", "human"], "nobody could answer"),
        (["--user.strategy", "llm", "--user.user-replay"], "user-replay: needs user-cache"),
        (["--user.key-env", "sk-a-key"], "must be the name of a variable"),
        (["--calculate-per-token-loss", "--objective", "turn-mean"], "leave one of them out"),
        (["--rollout-max-context-len", "200"], "the longest first prompt takes 129 tokens"),
        (["--agent-strategy", "few-shot"], "the longest first prompt takes"),
        (["--env", "tau2-airline"], "prompt: compact shows retail of τ-bench alone"),
        (["--env", "tau2-retail", "--prompt", "full"], "a judge must find"),
        (["--env", "tau2-airline", "--prompt", "full"], "the longest first prompt takes 5071"),
        (["--user.strategy", "llm", "--user.key-env", "NOT_SET"], "variable NOT_SET is not set"),
        (["--user.strategy", "llm", "--user.sglang", "m"], "leave key-env out|through slime"),
    ],
)
def test_what_is_missing_is_named(argv: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        train([*argv, "--threads", "1"])


def test_the_cluster_is_not_chosen_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('backend = "slime"')
    with pytest.raises(ValueError, match="chosen on the command line"):
        train(["--config", str(path)])


def test_a_run_folder_with_a_run_in_it_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="--run-dir"):
        train([*TINY, "--run-dir", str(tmp_path)])


def test_a_policy_that_is_half_written_is_refused(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    AutoTokenizer.from_pretrained(SHIPPED_POLICY).save_pretrained(policy)
    AutoModelForCausalLM.from_pretrained(SHIPPED_POLICY).save_pretrained(policy)
    weights = policy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="can't be read|half written"):
        train(["--hf-checkpoint", str(policy), "--run-dir", str(tmp_path / "run")])


@pytest.fixture
def small_policy(tmp_path: Path) -> Path:
    """One layer of random numbers with the shipped tokenizer: it knows nothing, but it is quick."""
    folder = tmp_path / "policy"
    AutoTokenizer.from_pretrained(SHIPPED_POLICY).save_pretrained(folder)
    config = AutoConfig.from_pretrained(SHIPPED_POLICY)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    small = Qwen3Config(**{**config.to_dict(), **sizes, "layer_types": None})
    torch.manual_seed(0)
    Qwen3ForCausalLM(small).save_pretrained(folder)
    return folder


def run(folder: Path, policy: Path, *more: str) -> subprocess.Popen[str]:
    return start(*TINY, "--hf-checkpoint", str(policy), "--run-dir", str(folder), *more)


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "apps.trainers.tau.train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"},
    )


def test_a_whole_run_ends_with_a_verdict_and_a_policy_that_loads(
    tmp_path: Path, small_policy: Path
) -> None:
    folder = tmp_path / "run"
    process = run(folder, small_policy)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert output.count("4 started = ") == 2
    assert "No rise is shown: tune score" in output
    assert "so the result flatters" in output
    assert "warmed up" not in output
    assert "Doing nothing scores 0.0 %" in output
    assert (folder / "report.html").is_file()
    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "step_2")
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def test_an_interrupted_run_exits_with_130_and_goes_on(tmp_path: Path, small_policy: Path) -> None:
    folder = tmp_path / "run"
    process = run(folder, small_policy, "--num-rollout", "200")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step"):
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=600)
    assert process.returncode == 130, rest
    assert "--resume" in rest
    assert (folder / "report.html").is_file()
    steps = [row for row in _rows(folder) if row["kind"] == "train"]
    resumed = start("--resume", "--run-dir", str(folder), "--num-rollout", str(len(steps) + 1))
    output, _ = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, output
    numbers = [row["step"] for row in _rows(folder) if row["kind"] == "train"]
    assert numbers == list(range(1, len(steps) + 2))


def test_a_resumed_run_keeps_its_options(tmp_path: Path, small_policy: Path) -> None:
    folder = tmp_path / "run"
    assert train([*TINY, "--hf-checkpoint", str(small_policy), "--run-dir", str(folder)]) == 0
    with pytest.raises(ValueError, match="--lr is 0.5, the run in .* was started with 0.0003"):
        again: Sequence[str] = ["--hf-checkpoint", str(small_policy), "--run-dir", str(folder)]
        train([*TINY, *again, "--resume", "--lr", "0.5"])


@pytest.fixture
def customer() -> Iterator[tuple[str, list[str]]]:
    """An endpoint whose model always says the same, for a cent; its URL and what it was told."""
    heard: list[str] = []

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append(body["messages"][-1]["content"])
            answer = {
                "choices": [{"message": {"content": "Help me."}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 10},
            }
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", heard
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_customer_played_by_a_model_is_recorded_replayed_and_never_costs_more_than_its_cap(
    tmp_path: Path,
    small_policy: Path,
    customer: tuple[str, list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, heard = customer
    cache = tmp_path / "replies.jsonl"
    asked = [
        "--hf-checkpoint", str(small_policy), "--num-rollout", "1", "--user.strategy", "llm",
        "--user.model", "m", "--user.base-url", url, "--user.key-env", "", "--user.max-tokens",
        "10", "--user.write-price", "1000", "--user.user-cache", str(cache),
    ]  # fmt: skip
    capped = [*TINY, *asked, "--run-dir", str(tmp_path / "a"), "--user.spend-cap-usd"]
    assert run_command(train, [*capped, "0.05"]) == 4
    error = capsys.readouterr().err
    assert "user.spend-cap-usd: the spend cap of $0.05 is reached" in error
    assert "0 of 1 steps are done and saved, go on with --resume" in error
    # The first asks whether somebody is there.
    assert len(heard) == 5 and len(cache.read_text().splitlines()) == 4
    assert run_command(train, [*capped, "100", "--resume"]) == 0
    out = capsys.readouterr().out
    assert "User llm-" in out and "The customer is llm-" in out and "offline" not in out
    row = _rows(tmp_path / "a")[-1]
    assert row["service_totals"]["user/usd"] == pytest.approx(0.01 * (len(heard) - 5))
    said = len(heard)
    # The same rollouts, from the recording alone.
    replayed = [*TINY, *asked, "--user.user-replay", "--run-dir", str(tmp_path / "b")]
    assert run_command(train, replayed) == 0
    assert len(heard) == said
    for mine, again in zip(_rows(tmp_path / "a"), _rows(tmp_path / "b"), strict=True):
        assert mine["reward_mean"] == again["reward_mean"]
        assert mine["ledger"] == again["ledger"]


def test_a_text_strategy_trains_without_tools_in_the_template(
    tmp_path: Path, small_policy: Path
) -> None:
    plain = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    prompt = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    (small_policy / "chat_template.jinja").write_text(plain + prompt)
    argv = [*TINY, "--hf-checkpoint", str(small_policy), "--num-rollout", "1"]
    room = ["--rollout-max-context-len", "2048", "--run-dir", str(tmp_path / "run")]
    assert train([*argv, *room, "--agent-strategy", "act"]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["tau"]["agent_strategy"] == "act"
    with pytest.raises(ValueError, match="tools"):
        train([*argv, "--run-dir", str(tmp_path / "native")])


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
