"""The embedded backend: everything of one training step that needs PyTorch.

| module       | holds                                                                      |
|--------------|----------------------------------------------------------------------------|
| `command`    | the command that trains a method: options, folder, training, verdict       |
| `check`      | what a run on this machine needs, looked at before                         |
| `serving`    | the SGLang server that a run starts beside its trainer                     |
| `policy`     | a model and its tokenizer from a folder, checked                           |
| `trainer`    | one training step: sampling, perhaps a step ahead, and the update          |
| `learner`    | from groups of rollouts to optimiser steps                                 |
| `update`     | the GRPO loss and one optimiser step                                       |
| `correction` | importance weights where engine and trainer differ (TIS, MIS)              |
| `forward`    | log-probs and entropy of trained tokens in packed rows                     |
| `attention`  | attention over a packed row                                                |
| `head`       | log-probs at the language-model head, in chunks                            |
| `optimizer`  | AdamW with float32 masters, in 8 bits, on the host                         |
| `adapters`   | LoRA through peft                                                          |
| `weights`    | a policy's weights as an engine or a checkpoint takes them                 |
| `memory`     | what training takes on the GPU, predicted                                  |
| `supervised` | next-token training of small policies on recorded `demonstrations`          |
| `checkpoint` | policy, optimiser and random state on disk, whole or not at all            |
| `threads`    | how many threads pay off                                                   |
| `again`      | a recorded episode played again, without a model                           |
| `lag`        | how long the event loop was held up                                        |
"""
