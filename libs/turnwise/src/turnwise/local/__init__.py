"""The embedded backend: everything of one training step that needs PyTorch.

| module       | holds                                                                      |
|--------------|----------------------------------------------------------------------------|
| `command`    | the command that trains a method: options, folder, training, verdict       |
| `check`      | what a run on this machine needs, looked at before                         |
| `serving`    | the SGLang server that a run starts beside its trainer                     |
| `policy`     | a model and its tokenizer from a folder, checked                           |
| `forward`    | log-probs and entropy of trained tokens in packed rows                     |
| `update`     | the GRPO loss and one optimiser step                                       |
| `supervised` | next-token training of small policies on recorded `demonstrations`          |
| `checkpoint` | policy, optimiser and random state on disk, whole or not at all            |
| `threads`    | how many threads pay off                                                   |
| `lag`        | how long the event loop was held up                                        |
"""
