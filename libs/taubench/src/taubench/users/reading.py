"""What a model's answer means as a user's message. Pure, and raises on no text.

| the answer holds                                 | it becomes                                    |
|--------------------------------------------------|-----------------------------------------------|
| a scratchpad (`<think>` ...)                     | removed first, with any marker inside         |
| an end of a scratchpad that was never begun      | all before it is removed                      |
| a scratchpad that never ends                     | all after its beginning is removed            |
| `###STOP###` or `###TRANSFER###`                 | the user's last message                       |
| `###STOP###` beside a yes that a write waits for | the words now, the stop one message later     |
| `###OUT-OF-SCOPE###`                             | a failure of the simulator                    |
| nothing else                                     | no message: the model is asked again          |

A stop is put off if the message has words besides it, the agent has just asked for a go-ahead, and
the words do not decline. The agent's next message then gets the stop, whatever it says: the write
happens, and the conversation is one message longer.
"""

from __future__ import annotations

import re

from turnwise.models import without_scratchpad
from turnwise.users import UserMessage

# Every run before what must match is bounded, so that no answer takes more than linear time.
_STOP = re.compile(r"#{2,6}[ \t]{0,3}(?:STOP|TRANSFER)\b[ \t]{0,3}#*", re.IGNORECASE)
_OUT_OF_SCOPE = re.compile(r"#{2,6}[ \t]{0,3}OUT[ _-]OF[ _-]SCOPE\b[ \t]{0,3}#*", re.IGNORECASE)
_SPEAKER = re.compile(r"\A\s*(?:customer|user)[ \t]*:[ \t]*", re.IGNORECASE)

_SENTENCE = re.compile(r"[^.?!\n]+[.?!]*")
_WANTS_A_YES = re.compile(
    r"\bconfirm|\b(?:shall|should|may|can) i\b|\bproceed\b|\bgo ahead\b|\bauthori[sz]e\b|"
    r"\byes ?/ ?no\b|\(yes\b|['\"]yes['\"]|\b(?:say|reply|answer|type|with) yes\b|"
    r"\bdo you (?:want|agree|accept|approve|wish|consent)\b|\bwould you like (?:me )?to\b|"
    r"\bare you sure\b|\bis (?:that|this|it|everything) (?:all )?(?:correct|right|ok|okay|fine|"
    r"acceptable)\b",
    re.IGNORECASE,
)
_CLOSES = re.compile(
    r"\b(?:anything|something|nothing) (?:else|more|further)\b|\bany (?:other|further|more) |"
    r"\bfurther assist",
    re.IGNORECASE,
)
_DECLINES = re.compile(
    r"\A\W*(?:no\b(?! problem)|nope\b|not\b(?! (?:a|any) problem)|never ?mind|stop\b|wait\b|"
    r"forget\b|don'?t\b|do not\b|"
    r"i (?:do not|don'?t|won'?t|will not|can'?t|cannot|refuse|decline)\b|"
    r"that(?:'s| is) (?:not|wrong))",
    re.IGNORECASE,
)

_LABEL = r"(?:{})[ \t]{{0,3}}\*{{0,3}}[ \t]{{0,3}}:[ \t]{{0,3}}\*{{0,3}}"
_THOUGHTS = "(?:inner )?thoughts?|thinking|reasoning|reflection|analysis|rationale"
_REPLIES = r"(?:(?:user|customer|my|final)(?:'s)? )?(?:reply|response|answer|message)"
_OTHERS = "agent|assistant|observation|user|customer"
_LINE_LABEL = re.compile(
    rf"^[ \t>#*_-]{{0,16}}(?:(?P<reply>{_LABEL.format(_REPLIES)})|"
    rf"{_LABEL.format(f'{_THOUGHTS}|{_OTHERS}')})",
    re.IGNORECASE | re.MULTILINE,
)
_INLINE_REPLY = re.compile(rf"\b{_LABEL.format(_REPLIES)}", re.IGNORECASE)
_ANY_THOUGHT = re.compile(rf"(?:^|(?<=\W)){_LABEL.format(_THOUGHTS)}", re.IGNORECASE)
_VERDICT = re.compile(r"\bverdict\W{1,8}(right|wrong)\b", re.IGNORECASE)


def read_message(text: str) -> UserMessage:
    """An answer that is the message as it stands."""
    spoken = without_scratchpad(text)
    out_of_scope = _OUT_OF_SCOPE.search(spoken) is not None
    stop = _STOP.search(spoken) is not None
    plain = without_markers(_SPEAKER.sub("", spoken))
    return UserMessage(plain.strip(), stop, out_of_scope)


def read_labelled(text: str) -> UserMessage:
    """An answer of a labelled thought and a labelled message: the message alone.

    The message is the first part labelled so, up to the next label; if labels stand within a line,
    what follows the last one. Without a label nothing can be told from a thought, so that there is
    no message; only a bare marker is one.
    """
    spoken = without_scratchpad(text)
    labels = list(_LINE_LABEL.finditer(spoken))
    for index, label in enumerate(labels):
        if label["reply"]:
            end = labels[index + 1].start() if index + 1 < len(labels) else len(spoken)
            return read_message(_before_thought(spoken[label.end() : end]))
    inline = list(_INLINE_REPLY.finditer(spoken))
    if inline:
        return read_message(_before_thought(spoken[inline[-1].end() :]))
    bare = read_message(spoken)
    return UserMessage("") if bare.text else bare


def _before_thought(text: str) -> str:
    found = _ANY_THOUGHT.search(text)
    return text[: found.start()] if found else text


def without_markers(text: str) -> str:
    """`text` with nothing that could end a conversation; a space stands in each marker's place."""
    return _OUT_OF_SCOPE.sub(" ", _STOP.sub(" ", text))


def puts_stop_off(heard: str, message: UserMessage) -> bool:
    """Whether `message`, said after the agent's `heard`, is a yes that a write waits for."""
    return bool(
        message.stop and message.text and not _DECLINES.search(message.text) and wants_a_yes(heard)
    )


def wants_a_yes(heard: str) -> bool:
    """Whether the agent asks for a go-ahead, beyond asking whether there is anything else."""
    return any(
        _WANTS_A_YES.search(sentence) and not _CLOSES.search(sentence)
        for sentence in _SENTENCE.findall(heard)
    )


def read_verdict(text: str) -> tuple[bool, str] | None:
    """Whether a draft is right, and the reason; None without a verdict. The last counts."""
    spoken = without_scratchpad(text)
    verdicts = list(_VERDICT.finditer(spoken))
    if not verdicts:
        return None
    reason = _VERDICT.sub("", spoken).strip(" \t\n*#:") or "it does not follow the part."
    return verdicts[-1][1].lower() == "right", reason
