"""slime's hooks: the same episodes, ledger and statistics on a cluster.

| slime's flag                              | value                                  |
|-------------------------------------------|----------------------------------------|
| `--custom-generate-function-path`         | `turnwise.slime.generate`              |
| `--custom-rm-path`                        | `turnwise.slime.reward_func`           |
| `--custom-reward-post-process-path`       | `turnwise.slime.post_process_rewards`  |
| `--dynamic-sampling-filter-path`          | `turnwise.slime.dynamic_filter`        |
| `--rollout-data-postprocess-path`         | `turnwise.slime.train_data`            |
| `--custom-rollout-log-function-path`      | `turnwise.slime.rollout_log`           |
| `--custom-eval-rollout-log-function-path` | `turnwise.slime.eval_log`              |

What to play is `args.turnwise`, a dict that slime reads from the file of `--custom-config-path`
(see `turnwise.slime.settings`); `args.turnwise_run_dir` beside it names the run folder
(`turnwise.slime.files`). No converter is needed: slime's own makes the training data from
these samples. Written for slime 0.3.1 at commit 624b824a; this package alone imports it.
"""

from turnwise.slime.hooks import close, generate
from turnwise.slime.logs import eval_log, rollout_log
from turnwise.slime.rewards import dynamic_filter, post_process_rewards, reward_func
from turnwise.slime.training import train_data

__all__ = [
    "close",
    "dynamic_filter",
    "eval_log",
    "generate",
    "post_process_rewards",
    "reward_func",
    "rollout_log",
    "train_data",
]
