"""tau-bench: upstream's tasks, tools and rewards at a thousandth of the cost.

    from taubench import Environment, load_tasks, to_turn, training_tasks
    from taubench.users import OfflineUser

    task = training_tasks(load_tasks("retail", "train"))[0]
    environment, user = Environment(task), OfflineUser()
    messages = [system(wiki("retail")), user_message(await user.reset(task))]
    tools = tool_schemas("retail")
    while not environment.done:
        parsed = ...                                       # the model's turn
        turn = to_turn(parsed.content, [(call.name, call.arguments) for call in parsed.calls])
        for action in turn.actions:
            result = environment.step(action)              # runs a tool: microseconds
            if result.awaits_user:                         # a message: only the loop awaits
                reply = await user.reply(action.kwargs["content"])
                result = environment.hear(reply.text, reply.done)
            if result.done:                                # result.reward, result.details
                break
    score = environment.score()                            # at any time, e.g. at a turn limit

What is here:
* `load_tasks(domain, split)`: `Task`s with `TaskFlags`. retail train 500, dev 20, test 115;
  airline test 50. `training_tasks(tasks)` leaves out those whose ground truth has a failing
  write; `noop_baseline(tasks)` is what doing nothing scores.
* `tool_schemas(domain)`, `wiki(domain)`, `rules(domain)`, `user_profile(task)`.
* `Environment(task)`: `reset()`, `step(action)`, `hear(reply, done)`, `score()`, `diff()`,
  `state_hash()`, `ground_truth_hash()`, `actions`, `done`, `awaits_user`.
* `Action(name, kwargs)`, `Action.respond(text)`; `to_turn(content, calls, errors=, several=)`
  gives a `Turn` of `actions`, `dropped` calls, `unheard` text and `unread` calls.
* `StepResult`: `observation`, `done`, `reward`, `source`, `awaits_user`, `details` (a `Reward`
  of `reward`, `r_actions`, `r_outputs`, `outputs`).
* `ground_truth(task)`: what the annotated calls change and return.

Data, tools and policies are upstream's, MIT licensed, Copyright (c) 2024 Sierra.
"""

from taubench.actions import DroppedCall, SeveralCalls, Turn, to_turn
from taubench.environment import (
    Environment,
    FieldDiff,
    GroundTruth,
    Reward,
    StepResult,
    ground_truth,
)
from taubench.flags import compute_flags, noop_baseline, training_tasks
from taubench.source import SPLITS, SourceError
from taubench.task import RESPOND, STOP, TERMINATING_TOOLS, Action, Task, TaskFlags
from taubench.tasks import load_tasks, rules, tool_schemas, user_profile, wiki

__all__ = [
    "RESPOND",
    "SPLITS",
    "STOP",
    "TERMINATING_TOOLS",
    "Action",
    "DroppedCall",
    "Environment",
    "FieldDiff",
    "GroundTruth",
    "Reward",
    "SeveralCalls",
    "SourceError",
    "StepResult",
    "Task",
    "TaskFlags",
    "Turn",
    "compute_flags",
    "ground_truth",
    "load_tasks",
    "noop_baseline",
    "rules",
    "to_turn",
    "tool_schemas",
    "training_tasks",
    "user_profile",
    "wiki",
]
