"""A package `slime` that keeps the contract of slime 0.3.1 for generate and log hooks.

Written from the contract, without torch, ray or a server: what hooks are given, what is checked of
what they return, and when. With the folder of this file on the path it is imported as `slime`.

| module                                 | keeps                                                   |
|----------------------------------------|---------------------------------------------------------|
| `slime.utils.types`                    | `Sample` with its status, counters and appending        |
| `slime.utils.misc`                     | `load_function`                                         |
| `slime.utils.http_utils`               | `post`, `get`                                           |
| `slime.rollout.sglang_rollout`         | `GenerateState`, `generate_and_rm(_group)`, the loop of |
|                                        | a training rollout with filter, abort and partial       |
|                                        | rollout, evaluation                                     |
| `slime.rollout.filter_hub.base_types`  | `DynamicFilterOutput`                                   |
| `slime.observability`                  | trackers, statistics of samples, spans                  |

Beside it: `contract` (arguments, data source, conversion to training data, dispatch of the log
hooks) and `servers` (an SGLang server and a user's endpoint that misbehave on demand).
"""
