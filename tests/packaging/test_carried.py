import re
from pathlib import Path

from turnwise.method import find_method

BUILD = Path(__file__).parents[2] / "build-support/carried/BUILD"
METHODS = ("agentflow", "memagent", "tau")


def test_a_pex_carries_what_the_methods_send_to_the_nodes() -> None:
    listed = re.search(r"^CARRIED = \[(.*?)^\]", BUILD.read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    methods = map(find_method, METHODS)
    sent = {name for method in methods for name in (*method.distributions, *method.apart)}
    assert set(re.findall(r'"([^"]+)"', listed[1])) == sent
