"""The method of examples/, as a user copies it out: it trains, is scored, and goes to a cluster."""

from __future__ import annotations

import json
from pathlib import Path

from turnwise import train

OWN = "examples.order_desk:OrderDesk"


def test_a_method_in_one_file_trains_and_rises(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert train(OWN, ["--threads", "1", "--run-dir", str(folder)]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["learned"], summary["verdict"]
    assert summary["after"]["mean"] > summary["before"]["mean"] + 0.2
