"""What the public leaderboard of τ²-bench asks for, and which of it a run lacks.

Facts of the benchmark's own documents at version 1.0: all tasks of the split base of each domain,
200 steps, 10 errors, the default scaffold unchanged, a user played by a model (recommended is
gpt-5.2; whichever it is stands on the board), several trials of each task (4 are preferred). A
policy that was trained on these domains, or played with other prompts, is listed as custom.
"""

from __future__ import annotations

from typing import Any

from turnwise.evaluation.options import SharedOptions

TRIALS, STEPS, ERRORS = 4, 200, 10
VERSIONED = {"tau2-retail": "v1.0", "tau2-airline": "v1.0"}
LISTED = ("tau2-retail", "tau2-airline", "tau2-telecom")
PROMPTS = (
    "the default scaffold to the letter (the instructions to agent and user are our words for the"
    " same rules; a policy trained on the domain is custom in any case)"
)


def lacking(options: SharedOptions, tau: Any) -> list[str]:
    """What is asked for and not met, in words; the last always stands.

    Args:
        options: The evaluation's.
        tau: Those of the method.
    """
    checks = (
        (tau.env in LISTED, f"one of its domains (found {tau.env})"),
        (options.split == "base", f"all tasks of the split base (found {options.split})"),
        (
            tau.task_set in (None, VERSIONED.get(tau.env, tau.task_set)),
            f"the corrected tasks of version 1.0 (found {tau.task_set})",
        ),
        (options.k >= TRIALS, f"{TRIALS} trials of each task, which are preferred"),
        (tau.user.strategy == "llm", f"a user played by a model (found {tau.user.strategy})"),
        (tau.max_steps == STEPS and tau.max_turns is None, f"{STEPS} steps (found another limit)"),
        (tau.max_errors == ERRORS, f"{ERRORS} errors (found {tau.max_errors})"),
        (not tau.strict, "the official grading (found the strict one)"),
        (
            tau.nl_assertions == "judge" or tau.env != "tau2-retail",
            "NL assertions told by a judge (they were taken as met)",
        ),
        (tau.several_calls in (None, "all"), "all calls of a turn carried out"),
    )
    return [*(what for met, what in checks if not met), PROMPTS]
