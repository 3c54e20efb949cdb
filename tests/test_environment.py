"""What the locked environment must hold, and must not."""

from importlib.util import find_spec

import pytest
import torch


def test_torch_is_the_cpu_build_that_is_locked() -> None:
    assert torch.__version__ == "2.13.0+cpu"
    assert torch.version.cuda is None


@pytest.mark.parametrize("name", ["litellm", "openai", "mistralai", "anthropic"])
def test_tau_trait_brings_no_model_client(name: str) -> None:
    assert find_spec("tau_trait") is not None
    assert find_spec(name) is None
