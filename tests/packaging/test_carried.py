import re
from pathlib import Path

from turnwise.launch.bundle import CARRIED

BUILD = Path(__file__).parents[2] / "build-support/carried/BUILD"


def test_a_pex_carries_what_is_sent_to_the_nodes() -> None:
    listed = re.search(r"^CARRIED = \[(.*?)^\]", BUILD.read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert set(re.findall(r'"([^"]+)"', listed[1])) == set(CARRIED)
