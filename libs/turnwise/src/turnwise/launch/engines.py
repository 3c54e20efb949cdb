"""The file of `--sglang-config`: models that slime serves beside the policy, and their ports.

slime 0.3.1 looks for free ports from 15000 on for each model anew, before another model's servers
listen: two models on a node are given the same ports, and one of them dies minutes later. What a
server group has in `overrides` goes before that.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.command import PreflightError
from turnwise.models.checks import models_of

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan

_PORT = re.compile(r"""(?<![\w-])port["']?\s*:""")
EXAMPLE = "{port: 24000, nccl_port: 24001, dist_init_addr: '127.0.0.1:24002'}"


def check_engines(plan: Plan) -> None:
    """Looks for models of one node that slime would give the same ports.

    Raises:
        PreflightError: naming them, and what to write.
    """
    value = plan.value("--sglang-config")
    if value is None or plan.nodes > 1:
        return
    found = [name for name, said in models_of(Path(value)).items() if not _PORT.search(said)]
    if len(found) > 1:
        raise PreflightError(
            f"{value}: slime would give {' and '.join(found)} the same ports, since it looks for"
            " them from 15000 on for each model; give all but one ports of their own, an engine a"
            f" server group: overrides: {EXAMPLE}"
        )
