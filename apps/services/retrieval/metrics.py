"""What the server has done, in Prometheus' text format (0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

PREFIX = "turnwise_retrieval_"
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Requests by path and status with their seconds, and queries by mode."""

    def __init__(self) -> None:
        self._requests: Counter[Labels] = Counter()
        self._queries: Counter[Labels] = Counter()
        self._within: Counter[float] = Counter()
        self._seconds = 0.0

    def request(self, path: str, status: int, seconds: float) -> None:
        """Counts a request that was answered, or given up by its client (499)."""
        self._requests[(("path", path), ("status", str(status)))] += 1
        self._seconds += seconds
        self._within.update(bound for bound in BOUNDS_S if seconds <= bound)

    def queries(self, mode: str, count: int) -> None:
        """Counts queries that were answered."""
        self._queries[(("mode", mode),)] += count

    def text(self, gauges: Mapping[str, int], counters: Mapping[str, int]) -> str:
        """All of them, with further ones by name."""
        lines = [
            *_metric("requests_total", "counter", self._requests.items()),
            *_metric("queries_total", "counter", self._queries.items()),
            f"# TYPE {PREFIX}request_seconds histogram",
            *(
                f'{PREFIX}request_seconds_bucket{{le="{bound}"}} {self._within[bound]}'
                for bound in BOUNDS_S
            ),
            f'{PREFIX}request_seconds_bucket{{le="+Inf"}} {self._requests.total()}',
            f"{PREFIX}request_seconds_sum {self._seconds:.6f}",
            f"{PREFIX}request_seconds_count {self._requests.total()}",
        ]
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, value in values.items():
                lines += _metric(name, kind, [((), value)])
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, values: Iterable[tuple[Labels, int]]) -> list[str]:
    lines = [f"# TYPE {PREFIX}{name} {kind}"]
    for labels, value in values:
        shown = ",".join(f'{key}="{text}"' for key, text in labels)
        lines.append(f"{PREFIX}{name}{{{shown}}} {value}" if shown else f"{PREFIX}{name} {value}")
    return lines
