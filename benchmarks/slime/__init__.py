"""Runs through slime's own `train.py` on one or two GPUs; see `docs/slime_on_gpu.md`.

Standard library and psutil alone, beside the packaged commands of the product: the node's Python
has them. `shapes` needs torch and transformers as well.
"""
