"""A tracker that keeps what it is given."""

from __future__ import annotations

from typing import Any

logged: list[dict[str, Any]] = []


def log(args: Any, metrics: dict[str, Any], step_key: str) -> None:
    if step_key not in metrics:
        raise KeyError(step_key)
    logged.append(dict(metrics))
