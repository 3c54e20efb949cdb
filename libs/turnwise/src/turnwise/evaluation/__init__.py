"""The evaluator of every benchmark.

    exit_code = turnwise.evaluate("my_agent:MyAgent", argv)     # any method, by its own reward
    ./pants run libs/turnwise:evaluate -- --method NAME --hf-checkpoint DIR --trials 4

| module       | holds                                                                       |
|--------------|-----------------------------------------------------------------------------|
| `command`    | the command: options, method, what is to be done                            |
| `options`    | what every evaluator takes                                                  |
| `benchmark`  | `Benchmark`: rows, scoring and what a score means, which is all that an     |
|              | evaluator of its own writes                                                 |
| `single`     | a model that is asked once, as a method                                     |
| `policies`   | the policy: a checkpoint, an SGLang server or an endpoint                   |
| `run`        | one evaluation from the options to the results                              |
| `folder`, `tasks`, `journal` | what is on disk; what is missing; the ledger of all trials  |
| `playing`    | plays the missing trials, each on disk as it ends, some kept whole          |
| `measures`, `estimates`, `spread` | avg@k, pass@k, pass^k, maj@k with bounds; the bootstrap |
| `results`    | what the trials say: summary.json, the page, the lines                      |
| `compare`    | two evaluations of the same tasks                                           |
| `rescore`, `saved` | saved outputs graded again, without a model                           |
| `best_of`    | what the best of many runs is worth by chance                               |

A task's trials are not independent: every error is clustered by task (`turnwise.trials`). A lost
trial has no score and is in no mean; it is in the bounds, in the coverage and in the ledger.
"""
