"""Running our hooks in slime itself: a process on whose path a checkout of slime lies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

CHECKOUT = os.environ.get("SLIME_CHECKOUT")
"""The checkout; None where none is named, and tests that need it are skipped."""

_CONTRACTS = {
    "CUSTOM_GENERATE_FUNCTION_PATH": "generate",
    "CUSTOM_RM_PATH": "reward_func",
    "DYNAMIC_SAMPLING_FILTER_PATH": "dynamic_filter",
    "CUSTOM_ROLLOUT_LOG_FUNCTION_PATH": "rollout_log",
    "CUSTOM_EVAL_ROLLOUT_LOG_FUNCTION_PATH": "eval_log",
    "CUSTOM_REWARD_POST_PROCESS_PATH": "post_process_rewards",
}


def run_in_slime(
    *words: str,
    path: Sequence[Path],
    folder: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The output of `python *words`, where python is SLIME_PYTHON or this one.

    Args:
        path: Folders that come on the path after the checkout and before ours.
        folder: Where it runs; the checkout by default.
        environment: Variables beside this process's.

    Raises:
        AssertionError: The process failed; its output is in the message.
    """
    assert CHECKOUT is not None
    ours = [one for one in sys.path if one and not one.endswith("slime_standin")]
    done = subprocess.run(
        [os.environ.get("SLIME_PYTHON", sys.executable), *words],
        cwd=folder or CHECKOUT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([CHECKOUT, *map(str, path), *ours]),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def run_contract_tests(module: str, path: Sequence[Path]) -> str:
    """The output of slime's own contract tests, with the hooks of a module found on `path`."""
    # Imported first, so that the tests put no stub in place of what the hooks need.
    words = ["-c", "import transformers, ray, pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"]
    words += ["-q", "-p", "no:cacheprovider", "tests/plugin_contracts"]
    hooks = {f"SLIME_CONTRACT_{name}": f"{module}.{hook}" for name, hook in _CONTRACTS.items()}
    return run_in_slime(*words, path=path, environment=hooks)
