"""Trains policies on one GPU with the embedded engine, with SGLang, and with TRL; writes figures.

    python -m benchmarks.one_gpu.measure --out DIR shipped/sglang shipped/torch shipped/trl
    python -m benchmarks.one_gpu.measure --out DIR qwen3-0.6B/sglang qwen3-0.6B/torch qwen3-0.6B/trl

| policy                   | weights        | task                                              |
|--------------------------|----------------|---------------------------------------------------|
| shipped                  | trained        | the compact tau-bench family, several turns       |
| qwen3-0.6B, smollm2-135M | random, bfloat16 | `benchmarks.one_gpu.fixed`: one turn of 256 tokens |

1. A server is started for each policy with a part of SGLang: `sglang`, `sglang-lag` with a step of
   lag, `sglang-lora` with adapters; `two` and `two-lag` have one on the second GPU. Meanwhile what
   is named after `--meanwhile` runs: `trainer` (`benchmarks.one_gpu.trainer`), `killed` and
   `killed-lag` (`benchmarks.one_gpu.killed`), and `offload`, a run whose own server gives memory
   back while it trains.
2. When those are over, the parts run one after the other, in the order given, each in a process of
   its own: the product's command, with `--engine-url` for SGLang, or TRL's trainer. A server is
   ended after its last part.

`results.json` in the folder is written anew all the time, so that what was measured before a limit
stays. `gpu_busy` is NVML's utilisation, sampled over the rollouts of steps after the first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.engine import guard
from turnwise.engine.server import SGLANG_LARGEST_PORT, free_port

from benchmarks.one_gpu.watching import REPOSITORY, Gpu, machine, read, start, tail

SHIPPED = REPOSITORY / "apps/trainers/tau/policy"
POLICIES = ("shipped", "qwen3-0.6B", "smollm2-135M")
ENGINES = ("sglang", "sglang-lag", "sglang-lora", "two", "two-lag", "torch", "trl")
MEANWHILE = ("trainer", "killed", "killed-lag", "offload")
WAYS = {
    "two": ("--engine-device", "cuda:1"),
    "two-lag": ("--engine-device", "cuda:1", "--rollout-lag", "1", "--use-tis"),
    "sglang-lag": ("--rollout-lag", "1", "--use-tis"),
    "sglang-lora": ("--lora-rank", "16", "--lr", "1e-4"),
}
TURN, CONTEXT = 256, 896
"""Tokens of the one turn of a policy with random weights, and of its conversation."""
COMMON = ("--seed", "1234", "--save-interval", "1000", "--n-samples-per-eval-prompt", "1")
FIXED = (
    *("libs/turnwise/train.py", "--method", "benchmarks.one_gpu.fixed:Fixed"),
    *("--rollout-max-context-len", str(CONTEXT)),
    # Two kernels in bfloat16 differ by 0.007 on average with random weights.
    *("--max-tokens-per-gpu", "32768", "--mean-logprob-diff", "0.1"),
)
# What needs nothing to be compiled beside SGLang's wheel and torch, and starts soonest.
SGLANG = (
    *("attention-backend=triton", "sampling-backend=pytorch", "grammar-backend=none"),
    *("disable-prefill-cuda-graph", "cuda-graph-max-bs-decode=256", "max-total-tokens=240000"),
)
# Servers wait beside other work on the GPU: it is the tokens above that bound what they take.
SHARE = "0.8"
ROW = (
    *("step", "rollout_s", "train_s", "sampled_tokens", "tokens_per_s", "trained_tokens"),
    *("engine_busy_s", "max_logprob_diff", "mean_logprob_diff", "reward_mean", "coverage"),
    *("peak_memory_bytes", "predicted_memory_bytes", "groups_kept", "groups"),
)
MEDIANS = ("rollout_s", "train_s", "tokens_per_s", "engine_busy_s")
POLL_S = 0.25
READY_S = 200.0
STOP_S = 15.0


def main(argv: Sequence[str]) -> None:
    """The command."""
    given = _parse(argv)
    until = time.monotonic() + given.limit_s
    given.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine(), "parts": {}}
    gpu, servers = Gpu(), dict[str, Server]()
    running: list[Run] = []

    def note() -> None:
        for run in running:
            results["parts"][run.name] = run.figures(gpu)
        _write(given.out, results)

    def wait(runs: Sequence[Run], deadline: float) -> None:
        while any(run.lives for run in runs) and time.monotonic() < deadline:
            for run in runs:
                run.look()
            note()
            time.sleep(POLL_S)
        for run in runs:
            run.end()
        note()

    try:
        for part in given.parts:
            if (name := served(part)) and name not in servers:
                servers[name] = Server(name, given)
        running += [Run(name, _meanwhile(name, given), given) for name in given.meanwhile]
        wait(running, min(until, time.monotonic() + given.meanwhile_s))
        for place, part in enumerate(given.parts):
            name = served(part)
            server = servers[name] if name else None
            if server is not None and not server.ready(min(until, time.monotonic() + READY_S)):
                results["parts"][part] = {"failed": "no server", "tail": tail(server.log)}
            elif time.monotonic() < until:
                running.append(Run(part, _words(part, given, server), given))
                wait(running[-1:], min(until, time.monotonic() + given.part_s))
            else:
                results["parts"][part] = {"failed": f"{given.limit_s:g} s were over"}
            if server is not None and name not in map(served, given.parts[place + 1 :]):
                server.end()
    finally:
        for run in running:
            run.end()
        for server in servers.values():
            server.end()
            results["parts"].setdefault("servers", {})[server.name] = tail(server.log)
        note()
    print(json.dumps(results, indent=1))


def served(part: str) -> str:
    """The server of a part: its policy, with `@two` where it is on the second GPU; "" for none."""
    policy, _, engine = part.partition("/")
    if engine.startswith("two"):
        return f"{policy}@two"
    return policy if engine.startswith("sglang") else ""


class Server:
    """An SGLang server with the run's own command, that waits for its part."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        from turnwise.local.options import TrainOptions
        from turnwise.local.serving import sglang_words

        self.name = name
        policy, _, place = name.partition("@")
        self.log = given.out / f"server-{name}.log"
        port = free_port(SGLANG_LARGEST_PORT)
        self.url = f"http://127.0.0.1:{port}"
        options = TrainOptions(
            hf_checkpoint=policy,
            device=given.device,
            engine="sglang",
            rollout_max_context_len=1024 if policy == "shipped" else CONTEXT,
            sglang_mem_fraction_static=float(SHARE),
            # One that waits takes no core.
            sglang_options=(*SGLANG, "sleep-on-idle"),
            engine_device="cuda:1" if place else None,
        )
        words = sglang_words(options, _folder(policy, given), port, positions=2**13)
        self._process = start(
            [sys.executable, "-I", guard.__file__, str(os.getpid()), *words], self.log
        )

    def ready(self, until: float) -> bool:
        """Waits for it; whether it answers."""
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"{self.url}/health", timeout=10):
                    return True
            time.sleep(POLL_S)
        return False

    def end(self) -> None:
        """Ends it with all that it started; its guard sees to that."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


class Run:
    """A part under way, in a process group of its own."""

    def __init__(self, name: str, words: Sequence[str], given: argparse.Namespace) -> None:
        self.name = name
        self.folder = given.out / name.replace("/", "-")
        self.log = given.out / f"{self.folder.name}.log"
        self._rows: list[dict[str, Any]] = []
        self._rollouts: list[tuple[float, float]] = []
        self._started = time.monotonic()
        self._ended: float | None = None
        python, seen = sys.executable, {}
        if name.endswith("/trl"):
            # It would spread over all that it sees.
            first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
            python, seen = given.peer_python, {"CUDA_VISIBLE_DEVICES": first}
        self._process = start([python, *words], self.log, seen)

    @property
    def lives(self) -> bool:
        """Whether it is not over."""
        if self._process.poll() is None:
            return True
        self._ended = self._ended or time.monotonic()
        return False

    def look(self) -> None:
        """Takes the rows that are new, and when their rollouts were."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.is_file() else []
        now = time.monotonic()
        for row in map(json.loads, lines[len(self._rows) :]):
            self._rows.append(row)
            if row["kind"] == "train":
                trained = now - row["train_s"]
                self._rollouts.append((trained - row["rollout_s"], trained))

    def end(self) -> None:
        """Ends it by Ctrl-C and then by force."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if not self.lives:
                break
            os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)

    def figures(self, gpu: Gpu) -> dict[str, Any]:
        """What is known of it by now."""
        self.look()
        own = read(self.folder.parent / f"{self.folder.name}.json")
        return {
            "exit": None if self.lives else self._process.returncode,
            "seconds": round((self._ended or time.monotonic()) - self._started, 1),
            **(figures(self._rows) if self._rows else {}),
            **({"gpu_busy": gpu.busy(self._rollouts[1:])} if len(self._rollouts) > 1 else {}),
            **({"found": own} if own is not None else {}),
            "tail": tail(self.log),
        }


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a run from its rows; steps after the first, which warms up."""
    train = [row for row in rows if row["kind"] == "train"]
    scores = [row for row in rows if row["kind"] == "eval"]
    said: dict[str, Any] = {
        "evaluations": [
            {name: row[name] for name in ("step", "reward_mean", "reward_stderr", "coverage")}
            | {"seconds": row["eval_s"]}
            for row in scores
        ],
        "steps": [{name: row.get(name) for name in ROW} for row in train],
    }
    if len(train) > 1:
        said["median"] = {
            name: statistics.median(found)
            for name in MEDIANS
            if (found := [row[name] for row in train[1:] if row.get(name) is not None])
        }
    return said


def _words(part: str, given: argparse.Namespace, server: Server | None) -> list[str]:
    """The command of a part."""
    policy, _, engine = part.partition("/")
    folder, out = _folder(policy, given), given.out / part.replace("/", "-")
    size = ["--prompts", str(given.prompts), "--steps", str(given.steps), "--device", given.device]
    if engine == "trl":
        file = f"{out}.json"
        if policy == "shipped":
            peer = ["-m", "benchmarks.local.against_trl", "--only", "trl", "--json", file]
        else:
            peer = ["-m", "benchmarks.one_gpu.peer", "--out", file, "--tokens", str(given.tokens)]
        return [*peer, "--policy", str(folder), *size]
    words = _training(policy, given, out)
    if server is not None:
        words += ["--engine", "sglang", "--engine-url", server.url]
    else:
        words += ["--engine-rows", "256"]
    return [*words, *WAYS.get(engine, ()), *given.more]


def _training(policy: str, given: argparse.Namespace, out: Path) -> list[str]:
    words = ["-m", "apps.trainers.tau.train", *COMMON]
    if policy != "shipped":
        words = [*FIXED, *COMMON, "--hf-checkpoint", str(_folder(policy, given))]
        words += ["--rollout-max-response-len", str(given.tokens)]
    words += ["--device", given.device, "--run-dir", str(out), "--num-rollout", str(given.steps)]
    return [*words, "--rollout-batch-size", str(given.prompts)]


def _meanwhile(name: str, given: argparse.Namespace) -> list[str]:
    out = str(given.out / f"{name}.json")
    if name == "trainer":
        limit = str(given.meanwhile_s - 30)
        return ["-m", "benchmarks.one_gpu.trainer", "--out", out, "--limit-s", limit]
    if name == "offload":
        words = _training(POLICIES[1], given, given.out / name)
        words += ["--engine", "sglang", "--offload-rollout", "--sglang-mem-fraction-static", SHARE]
        return [*words, "--sglang-options", *SGLANG, "disable-cuda-graph"]
    words = ["-m", "benchmarks.one_gpu.killed", "--out", out, "--device", given.device]
    words += ["--run-dir", str(given.out / name), "--prompts", str(given.prompts)]
    return words + (["--rollout-lag", "1"] if name == "killed-lag" else [])


def _folder(policy: str, given: argparse.Namespace) -> Path:
    """The checkpoint, made where it is of random weights."""
    if policy == "shipped":
        return SHIPPED
    from benchmarks.slime.shapes import make_shape

    folder: Path = given.policies / policy
    make_shape(policy, SHIPPED, folder, given.device)
    return folder


def _part(word: str) -> str:
    policy, _, engine = word.partition("/")
    if policy not in POLICIES or engine not in ENGINES:
        names = f"one of {', '.join(POLICIES)}, and one of {', '.join(ENGINES)}"
        raise argparse.ArgumentTypeError(f"{word}: is no POLICY/ENGINE: {names}")
    return word


def _write(folder: Path, results: Mapping[str, Any]) -> None:
    draft = folder / "results.part"
    draft.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / "results.json")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.one_gpu.measure",
        description="Trains policies on one GPU with each engine, and with TRL.",
        epilog="Words after -- are further options of the runs with an engine.",
        allow_abbrev=False,
    )
    parser.add_argument("parts", nargs="*", type=_part, metavar="POLICY/ENGINE")
    parser.add_argument("--out", type=Path, required=True, help="gets results.json, runs, logs")
    parser.add_argument("--policies", type=Path, help="for random weights; OUT/policies")
    parser.add_argument("--meanwhile", nargs="*", choices=MEANWHILE, default=[], metavar="NAME")
    parser.add_argument("--meanwhile-s", type=float, default=200.0, help="then those are ended")
    parser.add_argument("--limit-s", type=float, default=600.0, help="then all is ended")
    parser.add_argument("--part-s", type=float, default=120.0, help="then a part is ended")
    parser.add_argument("--steps", type=int, default=4, help="training steps of each part")
    parser.add_argument("--prompts", type=int, default=32, help="prompts a step, 8 samples each")
    parser.add_argument("--tokens", type=int, default=TURN, help="of a rollout, random weights")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with TRL")
    parser.add_argument("--device", default="cuda", help="cpu tries the script alone")
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:end])
    given.more = words[end + 1 :]
    given.out = given.out.absolute()
    given.policies = (given.policies or given.out / "policies").absolute()
    return given


if __name__ == "__main__":
    main(sys.argv[1:])
