"""Which build is tested."""

import os

from tokendelta import _core


def test_the_build_checks_invariants_exactly_where_it_was_asked_to() -> None:
    assert _core.CHECKED == (os.environ.get("TOKENDELTA_CHECKS") == "1")
