"""Training with an SGLang server of the run: the fake one, in a process of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from turnwise.command import PreflightError, RunError, StopRun
from turnwise.config import ConfigError
from turnwise.engine import Completion
from turnwise.engine.server import SGLANG_LARGEST_PORT, free_port
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Boundary, BoundaryError
from turnwise.local.checkpoint import list_checkpoints
from turnwise.local.command import LocalRun
from turnwise.local.options import TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.testing.policy_server import FAULTS, Faults, PolicyServer, fake_site
from turnwise.testing.servers import in_a_thread

from local.letters import letters

FAST = [
    "--num-rollout", "3", "--rollout-batch-size", "4", "--n-samples-per-prompt", "4",
    "--n-samples-per-eval-prompt", "2", "--rollout-max-response-len", "6", "--threads", "1",
    "--rollout-max-context-len", "160", "--lr", "3e-3", "--save-interval", "2",
    "--engine", "sglang",
]  # fmt: skip
TURNS_OF_AN_EVALUATION, TURNS_OF_A_STEP = 8, 32


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the fake SGLang importable, and as wrong as asked."""
    for name, value in fake_site(tmp_path / "site").items():
        monkeypatch.setenv(name, value)

    def be(**said: Any) -> None:
        monkeypatch.setenv(FAULTS, json.dumps({"folder": str(tmp_path), **said}))

    be()
    return be


@pytest.fixture
def run(policy_folder: Path, tmp_path: Path, faults: Any) -> Callable[..., int]:
    method = letters()
    method.shipped = policy_folder

    def start(*words: str) -> int:
        return LocalRun(method, [*FAST, "--run-dir", str(tmp_path / "run"), *words]).run()

    return start


@pytest.fixture
def served(policy_folder: Path) -> Callable[..., PolicyServer]:
    """A server in this process, for `--engine-url`."""

    def start(**faults: Any) -> PolicyServer:
        server = PolicyServer(policy_folder, context=176, faults=Faults(**faults))
        in_a_thread(server)
        return server

    return start


def rows(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    return [row for line in lines if (row := json.loads(line))["kind"] == kind]


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "starts").read_text().splitlines())


def nobody_is_left() -> bool:
    return not psutil.Process().children(recursive=True)


def test_a_run_on_a_served_engine_trains_what_the_server_sampled(
    run: Callable[..., int], tmp_path: Path
) -> None:
    assert run() == 0
    assert nobody_is_left() and starts(tmp_path) == 1
    train = rows(tmp_path, "train")
    assert [row["step"] for row in train] == [1, 2, 3]
    for row in train:
        assert row["groups_kept"] == 4 and row["sampled_tokens"] > 16 * 2
        # The server's log-probs are the trainer's, step after step: every update reached it.
        assert row["max_logprob_diff"] < 1e-4
    traces = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    versions = {
        (row["step"], row["kind"]): set(row["info"]["weight_versions"])
        for row in map(json.loads, traces)
    }
    assert versions == {
        (0, "eval"): {0},
        **{(step, "train"): {step - 1} for step in (1, 2, 3)},
        (3, "eval"): {3},
    }
    assert (tmp_path / "run" / "logs" / "engine.log").is_file()


def test_a_server_that_dies_twice_ends_the_run_and_nothing_done_is_lost(
    run: Callable[..., int],
    faults: Any,
    served: Callable[..., PolicyServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In its second step first, of which every episode is under way, and in the fourth again."""
    faults(die_after=[TURNS_OF_AN_EVALUATION + TURNS_OF_A_STEP + 6, TURNS_OF_A_STEP + 6])
    with pytest.raises(StopRun, match="ended for the second time(.|\n)*3 of 5 steps are done"):
        run("--num-rollout", "5")
    assert "the fake died" in capsys.readouterr().err
    train = rows(tmp_path, "train")
    assert [row["ledger"]["lost"] for row in train] == [{}, {"engine": 16}, {}]
    assert train[2]["max_logprob_diff"] < 1e-4
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "step_3"
    assert nobody_is_left() and starts(tmp_path) == 2
    assert run("--resume", "--num-rollout", "5", "--engine-url", served().url) == 0
    assert [row["step"] for row in rows(tmp_path, "train")] == [1, 2, 3, 4, 5]
    assert all(row["max_logprob_diff"] < 1e-4 for row in rows(tmp_path, "train")[3:])


class Mended(TorchEngine):
    """Breaks at its third turn, and is whole again."""

    turns, restarts = 0, 0

    async def generate(self, *args: Any, **options: Any) -> Completion:
        self.turns += 1
        if self.turns == 3:
            self.restarts += 1
        if self.turns <= 3:
            raise BoundaryError(Boundary.ENGINE, "gone")
        return await super().generate(*args, **options)


def test_an_evaluation_during_which_the_engine_broke_is_made_again(
    policy_folder: Path, tmp_path: Path
) -> None:
    def make(options: TrainOptions, policy: LoadedPolicy) -> TorchEngine:
        return Mended(policy.model, rows=8, context=options.rollout_max_context_len)

    argv = [*FAST[:-2], "--run-dir", str(tmp_path / "run"), "--hf-checkpoint", str(policy_folder)]
    assert LocalRun(letters(), [*argv, "--num-rollout", "0"], make).run() == 0
    assert [row["coverage"] for row in rows(tmp_path, "eval")] == [1.0]


class Broken(TorchEngine):
    """Loses all turns of its third rollout, and is whole again."""

    rollout, restarts = 0, 0

    async def clear(self) -> None:
        self.rollout += 1
        await super().clear()

    async def generate(self, *args: Any, **options: Any) -> Completion:
        if self.rollout == 3:
            self.restarts = 1
            raise BoundaryError(Boundary.ENGINE, "gone")
        return await super().generate(*args, **options)


@pytest.mark.parametrize("lag", ["0", "1"])
def test_a_rollout_that_a_restarted_engine_lost_whole_ends_no_run(
    policy_folder: Path, tmp_path: Path, lag: str
) -> None:
    """With a lag it is lost while the step before it trains."""

    def make(options: TrainOptions, policy: LoadedPolicy) -> TorchEngine:
        return Broken(policy.model, rows=8, context=options.rollout_max_context_len)

    argv = [*FAST[:-2], "--run-dir", str(tmp_path / "run"), "--hf-checkpoint", str(policy_folder)]
    assert LocalRun(letters(), [*argv, "--rollout-lag", lag], make).run() == 0
    lost = [row["ledger"]["lost"] for row in rows(tmp_path, "train")]
    assert lost == [{}, {"engine": 16}, {}]


def test_an_update_that_did_not_reach_the_server_stops_the_run(
    run: Callable[..., int], served: Callable[..., PolicyServer], tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="step 3: engine and trainer differ"):
        run("--lr", "0.05", "--engine-url", served(forget=(2,)).url)
    assert len(rows(tmp_path, "train")) == 2


def test_memory_is_given_back_while_training(
    run: Callable[..., int], served: Callable[..., PolicyServer], tmp_path: Path
) -> None:
    server = served()
    assert run("--offload-rollout", "--num-rollout", "2", "--engine-url", server.url) == 0
    assert all(row["max_logprob_diff"] < 1e-4 for row in rows(tmp_path, "train"))
    assert server.releases == 2 and not server.released


def test_the_next_rollouts_are_sampled_from_the_weights_before_while_a_step_trains(
    run: Callable[..., int], served: Callable[..., PolicyServer], tmp_path: Path
) -> None:
    assert run("--rollout-lag", "1", "--lr", "3e-4", "--engine-url", served().url) == 0
    traces = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    versions = {
        row["step"]: set(row["info"]["weight_versions"])
        for row in map(json.loads, traces)
        if row["kind"] == "train"
    }
    assert versions == {1: {0}, 2: {0}, 3: {1}}
    gaps = [row["max_logprob_diff"] for row in rows(tmp_path, "train")]
    assert gaps[0] < 1e-4 < min(gaps[1:])


def test_a_run_that_goes_on_may_be_given_another_server_but_no_other_engine(
    run: Callable[..., int], served: Callable[..., PolicyServer], tmp_path: Path
) -> None:
    assert run("--num-rollout", "1", "--engine-url", served().url) == 0
    assert run("--resume", "--num-rollout", "2", "--engine-url", served().url) == 0
    assert all(row["max_logprob_diff"] < 1e-4 for row in rows(tmp_path, "train"))
    with pytest.raises(ConfigError, match="engine-url needs engine sglang"):
        run("--resume", "--num-rollout", "3", "--engine", "torch")


def test_no_sglang_is_said_with_the_log(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(PreflightError, match="No module named 'sglang'"):
        run()
    assert nobody_is_left()


def test_a_card_that_is_too_small_is_said_as_the_server_says_it(
    run: Callable[..., int], tmp_path: Path
) -> None:
    said = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static"
    (tmp_path / "site/sglang/launch_server.py").write_text(f"raise SystemExit({said!r})")
    with pytest.raises(PreflightError, match="exit code 1(.|\n)*Not enough memory"):
        run()


def test_a_port_that_is_taken_is_named(run: Callable[..., int]) -> None:
    with socket.socket() as taken:
        port = free_port(SGLANG_LARGEST_PORT)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(PreflightError, match=f"--engine-port {port} is taken"):
            run("--engine-port", str(port))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "torch", "--engine-port", "1"), "engine-port needs engine sglang"),
        (("--engine", "vllm"), "engine"),
        (("--engine-url", "localhost:30000"), "engine-url"),
        (
            ("--engine-url", "http://h:1", "--engine-port", "1"),
            "engine-port is for a server that is started",
        ),
        (("--engine-device", "cuda:1"), "engine-device needs device cuda"),
        (("--engine-device", "gpu"), "engine-device"),
        (("--engine-port", "55536"), "engine-port"),
        (("--sglang-mem-fraction-static", "1.5"), "sglang-mem-fraction-static"),
        (("--engine-start-s", "nan"), "engine-start-s"),
    ],
)
def test_a_wrong_option_of_the_engine_is_named(
    run: Callable[..., int], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run(*words, "--dry-run")
