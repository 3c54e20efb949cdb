"""The command of the server, from the run's options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from turnwise.local.options import TrainOptions
from turnwise.local.serving import sglang_words


def words(**changes: object) -> list[str]:
    options = TrainOptions.model_validate(
        {"engine": "sglang", "device": "cuda", "rollout_max_context_len": 512, **changes}
    )
    return sglang_words(options, Path("/policy"), 30_000, positions=4096)


def flags(*, switches: tuple[str, ...] = (), **changes: object) -> dict[str, str]:
    found = words(**changes)
    python, minus_m, module, *rest = found
    assert (python, minus_m, module) == (sys.executable, "-m", "sglang.launch_server")
    for switch in switches:
        rest.remove(switch)
    return dict(zip(rest[::2], rest[1::2], strict=True))


def test_the_server_has_the_runs_policy_context_and_bounds() -> None:
    found = flags(concurrency=64, seed=2**40 + 3)
    assert found["--model-path"] == "/policy" and found["--port"] == "30000"
    assert found["--host"] == "127.0.0.1" and found["--dtype"] == "bfloat16"
    assert found["--context-length"] == "528" and found["--max-running-requests"] == "64"
    assert found["--max-total-tokens"] == str(2 * 64 * 528)
    assert found["--mem-fraction-static"] == "0.4" and found["--random-seed"] == "3"
    assert "--base-gpu-id" not in found and "--device" not in found


def test_a_served_context_is_no_longer_than_the_model_has_positions() -> None:
    assert (
        flags(rollout_max_context_len=4090, max_tokens_per_gpu=8192)["--context-length"] == "4096"
    )


def test_a_second_gpu_is_named_and_given_more_of_its_memory() -> None:
    found = flags(engine_device="cuda:1")
    assert (found["--base-gpu-id"], found["--mem-fraction-static"]) == ("1", "0.85")
    own = flags(engine_device="cuda:1", sglang_mem_fraction_static=0.5)
    assert own["--mem-fraction-static"] == "0.5"


def test_further_flags_go_before_those_of_the_run() -> None:
    found = flags(
        sglang_options=("dtype=float16", "attention-backend=triton", "disable-cuda-graph"),
        switches=("--disable-cuda-graph",),
    )
    assert (found["--dtype"], found["--attention-backend"]) == ("float16", "triton")


def test_a_cpu_computes_in_float32_and_memory_is_saved_where_it_is_given_back() -> None:
    found = flags(device="cpu", offload_rollout=True, switches=("--enable-memory-saver",))
    assert (found["--device"], found["--dtype"]) == ("cpu", "float32")


def test_another_interpreter_runs_it() -> None:
    assert words(engine_python="/venv/bin/python")[0] == "/venv/bin/python"


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({}, (2.0, 0.01)),
        ({"engine": "torch"}, (0.02, 0.01)),
        ({"engine": "torch", "dtype": "bfloat16"}, (2.0, 0.01)),
        ({"device": "cpu"}, (0.02, 0.01)),
        ({"max_logprob_diff": 0.5, "mean_logprob_diff": 0.002}, (0.5, 0.002)),
        ({"rollout_lag": 1}, (float("inf"), 0.1)),
    ],
)
def test_the_bound_of_the_gap_is_that_of_what_both_compute_in(
    changes: dict[str, object], limits: tuple[float, float]
) -> None:
    options = {"engine": "sglang", "device": "cuda", **changes}
    assert TrainOptions.model_validate(options).logprob_limits() == limits
