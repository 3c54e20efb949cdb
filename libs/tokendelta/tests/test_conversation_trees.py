import os
from random import Random

from conversation_trees import play
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# A tenth of the long run, which is `python conversation_trees.py 200000`.
CONVERSATIONS = int(os.environ.get("TOKENDELTA_CONVERSATIONS", "2000"))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_random_conversation_trees_agree_with_the_oracle(rnd) -> None:
    play(rnd)


def test_many_conversation_trees_agree_with_the_oracle() -> None:
    assert sum(play(Random(seed)) for seed in range(CONVERSATIONS)) > CONVERSATIONS
