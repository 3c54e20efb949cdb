"""Converts checkpoints with the model arguments of a run's file, by slime's own converters.

./pants run apps/trainers/toolorchestra:convert -- --config FILE            to Megatron's torch_dist
./pants run apps/trainers/toolorchestra:convert -- --config FILE --to hf    back to Hugging Face
"""

from __future__ import annotations

import sys
from functools import partial

from turnwise.command import run_command
from turnwise.launch.convert import convert

if __name__ == "__main__":
    sys.exit(run_command(partial(convert, "toolorchestra"), sys.argv[1:]))
