"""What can be wrong with an input, one type each.

Every error leaves the session as it was. The message names the turn and the index, says what was
found and what to do about it.
"""

from __future__ import annotations


class TokenDeltaError(ValueError):
    """Base of every error that this package raises."""


class LengthError(TokenDeltaError):
    """Streams that belong together differ in length."""


class TokenIdError(TokenDeltaError):
    """A token id that is no integer, or outside of the vocabulary."""


class LogprobError(TokenDeltaError):
    """A log-prob that is NaN, infinite or greater than 0."""


class MessageError(TokenDeltaError):
    """A message that is no message: unknown role, no content, wrong place."""


class TemplateError(TokenDeltaError):
    """The chat template raised, or gave text that nothing can be derived from."""


class StateError(TokenDeltaError):
    """A call that does not fit the state of the session, such as two prompts in a row."""


class RewriteError(TokenDeltaError):
    """The template rewrites history that was sampled, and `on_rewrite="error"` was asked for."""


class SpecialTextError(TokenDeltaError):
    """Text from the environment spells a special token, and `specials="reject"` was asked for."""
