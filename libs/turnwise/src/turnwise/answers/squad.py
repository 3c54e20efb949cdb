"""Answers in words: normalised exact match and token F1.

Rules of SQuAD 1.1 (Rajpurkar et al. 2016): lower case, no ASCII punctuation, no articles, single
spaces. F1 counts tokens as a multiset. As in HotpotQA (Yang et al. 2018), `yes`, `no` and
`noanswer` match nothing but themselves; as in SQuAD 2.0 (Rajpurkar et al. 2018), an answer of no
tokens matches one of no tokens alone. Of several truths the best counts.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_WHOLE = frozenset({"yes", "no", "noanswer"})


def normalise(text: str) -> str:
    """`text` as it is compared; see the module."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, truths: str | Iterable[str]) -> bool:
    """Whether the prediction is one of the truths, both normalised.

    Raises:
        ValueError: there is no truth.
    """
    normal = normalise(prediction)
    return any(normal == normalise(truth) for truth in _listed(truths))


def f1(prediction: str, truths: str | Iterable[str]) -> float:
    """Harmonic mean of precision and recall of the tokens, in [0, 1].

    Raises:
        ValueError: there is no truth.
    """
    normal = normalise(prediction)
    return max(_f1(normal, normalise(truth)) for truth in _listed(truths))


def _f1(prediction: str, truth: str) -> float:
    if prediction == truth:
        return 1.0
    if prediction in _WHOLE or truth in _WHOLE:
        return 0.0
    left, right = prediction.split(), truth.split()
    common = (Counter(left) & Counter(right)).total()
    return 2 * common / (len(left) + len(right))


def _listed(truths: str | Iterable[str]) -> list[str]:
    listed = [truths] if isinstance(truths, str) else list(truths)
    if not listed:
        raise ValueError("there is no truth to compare with")
    return listed
