"""Reading a model's answer: scratchpads, labels, markers. Pure, and raises on nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taubench import STOP
from taubench.users.reading import (
    puts_stop_off,
    read_labelled,
    read_message,
    read_verdict,
    wants_a_yes,
    without_markers,
)
from turnwise.models import without_scratchpad
from turnwise.users import UserMessage

FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<Thinking>",
        "</reasoning>",
        "###STOP###",
        "###OUT-OF-SCOPE###",
        "Thought:",
        "Reply:",
        "User Response:",
        "**Reply:**",
        "Agent:",
        "SECRET",
        "hello",
        "\n",
        " ",
        "#",
        "STOP",
        ":",
    ]
)
JUMBLE = st.lists(FRAGMENTS | st.text(max_size=3), max_size=30).map("".join)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>I am Mia.</think>Hello", "Hello"),
        ("<think>\nsay ###STOP###?\n</think>\n\nNot yet.", "Not yet."),
        ("Fine.<think>and now?</think>", "Fine."),
        ("<THINKING>a</THINKING>b<reasoning>c</reasoning>d", "bd"),
        ("a thought of the template</think>Hello", "Hello"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<think>it never ends", ""),
        ("Hi.<think>it never ends", "Hi."),
        ("a < b > c <thinker> d", "a < b > c <thinker> d"),
        ("", ""),
    ],
)
def test_a_scratchpad_is_removed(text: str, left: str) -> None:
    assert without_scratchpad(text) == left


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("###STOP###", UserMessage("", stop=True)),
        ("Thanks, bye. ###STOP###", UserMessage("Thanks, bye.", stop=True)),
        ("### stop ###", UserMessage("", stop=True)),
        ("##STOP##", UserMessage("", stop=True)),
        ("Bye ###STOP", UserMessage("Bye", stop=True)),
        ("###TRANSFER###", UserMessage("", stop=True)),
        ("###OUT-OF-SCOPE###", UserMessage("", out_of_scope=True)),
        ("### Out of scope ###", UserMessage("", out_of_scope=True)),
        ("<think>then ###STOP###</think>Go on.", UserMessage("Go on.")),
        ("<think>then ###STOP###", UserMessage("")),
        ("<think>###OUT-OF-SCOPE###</think>Go on.", UserMessage("Go on.")),
        ("Customer: Hello", UserMessage("Hello")),
        ("My user: tag is red", UserMessage("My user: tag is red")),
        ("Please stop the order. #STOP", UserMessage("Please stop the order. #STOP")),
        ("Order ##STOPWATCH", UserMessage("Order ##STOPWATCH")),
        ("", UserMessage("")),
    ],
)
def test_markers_are_read_outside_of_scratchpads_alone(text: str, words: UserMessage) -> None:
    assert read_message(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "Thought: SECRET\nReply: Hello there.",
        "Thought: SECRET\n\nReply:\nHello there.",
        "**Thought:** SECRET\n**Reply:** Hello there.",
        "### Thought:\nSECRET\n### Reply:\nHello there.",
        "thought : SECRET\nUSER RESPONSE : Hello there.",
        "Thought: SECRET. Reply: Hello there.",
        "Thought: my reply: SECRET, in short. Response: Hello there.",
        "Thought: my reply: SECRET\nReply: Hello there.",
        "SECRET without a label\nReply: Hello there.",
        "Reply: Hello there.\nThought: SECRET",
        "Reply: Hello there. Thought: SECRET",
        "Thought: SECRET\nReply: Hello there.\nThought: SECRET\nReply: SECRET",
        "Thought: SECRET\nThought: SECRET\nReply: Hello there.",
        "Thought: SECRET\nReply: Hello there.\nAgent: SECRET\nThought: SECRET\nReply: SECRET",
        "<think>Reply: SECRET</think>Thought: SECRET\nMy final answer: Hello there.",
        "Reasoning: SECRET\nCustomer's message: Hello there.",
    ],
)
def test_a_thought_is_never_part_of_the_message(text: str) -> None:
    assert read_labelled(text) == UserMessage("Hello there.")


@pytest.mark.parametrize(
    "text",
    [
        "Thought: SECRET",
        "SECRET",
        "SECRET ###STOP###",
        "Thought: SECRET ###STOP###",
        "Thought: SECRET\nReply:",
        "Thought: SECRET\nReply:\nThought: SECRET",
        "<think>SECRET",
        "",
    ],
)
def test_where_the_message_cannot_be_told_there_is_none(text: str) -> None:
    assert read_labelled(text).empty


def test_a_marker_in_a_thought_does_not_count() -> None:
    assert not read_labelled("Thought: later ###STOP###\nReply: Yes.").stop
    assert read_labelled("Thought: done\nReply: ###STOP###") == UserMessage("", stop=True)
    assert read_labelled("Thought: done\nReply: Bye.\n###STOP###") == UserMessage("Bye.", stop=True)
    assert read_labelled("###STOP###") == UserMessage("", stop=True)


@given(before=JUMBLE, after=JUMBLE)
def test_no_jumble_of_markers_shows_a_labelled_thought(before: str, after: str) -> None:
    text = f"{before}\nThought: XSECRETX\n{after}"
    assert "XSECRETX" not in read_labelled(text).text


@given(text=JUMBLE | st.text())
def test_reading_raises_nothing_and_leaves_no_marker(text: str) -> None:
    for words in (read_message(text), read_labelled(text)):
        assert STOP not in words.text
        assert not read_message(words.text).stop
        assert not read_message(words.text).out_of_scope
    read_verdict(text)
    wants_a_yes(text)
    assert STOP not in without_markers(text)


def test_a_marker_that_forms_when_another_is_removed_is_none() -> None:
    assert without_markers("###ST###STOP###OP###") == "###ST OP###"


@pytest.mark.parametrize(
    "piece",
    [
        "<think>",
        "</think>",
        "Reply:",
        "\nReply:",
        "###STOP",
        "#",
        "Thought: ",
        "\n",
        " ",
        "## ",
        "*",
    ],
)
def test_a_long_jumble_is_read_in_no_time(piece: str) -> None:
    """In linear time a few milliseconds, in quadratic minutes: the run would not go unnoticed."""
    for text in (piece * 30_000, f"Thought{piece * 30_000}", f"##{piece * 30_000}STOP"):
        read_labelled(text)
        read_message(text)
        read_verdict(text)
        wants_a_yes(text)


CONFIRM = "I will cancel order #W1, reason: no longer needed. Do you confirm (yes/no)?"


@pytest.mark.parametrize(
    "heard",
    [
        CONFIRM,
        "Shall I go ahead with the refund to your gift card?",
        "Would you like me to proceed?",
        "Please reply with yes to authorize the exchange.",
        "The total is $12. Is that correct?",
        "Can you confirm that you want to return the lamp?",
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "Yes, please. ###STOP###",
        "yes ###STOP###",
        "Go ahead, thanks!\n###STOP###",
        "Sure, that's right. Thank you, that is all. ###STOP###",
        "Cancel that order, please. ###STOP###",
        "Not a problem, go on. ###STOP###",
        "No problem, do it. ###STOP###",
    ],
)
def test_a_stop_beside_a_yes_that_a_write_waits_for_is_put_off(heard: str, text: str) -> None:
    assert puts_stop_off(heard, read_message(text))


@pytest.mark.parametrize(
    ("heard", "text"),
    [
        (CONFIRM, "###STOP###"),
        (CONFIRM, "No, thank you. ###STOP###"),
        (CONFIRM, "Never mind. ###STOP###"),
        (CONFIRM, "I don't want that. ###STOP###"),
        (CONFIRM, "Yes, please."),
        ("Your order is cancelled. Is there anything else I can do?", "No, bye. ###STOP###"),
        ("Your order is cancelled. Is there anything else?", "That's all, thanks ###STOP###"),
        ("Would you like me to do anything else for you?", "Yes, well, no. ###STOP###"),
        ("Your order has been cancelled.", "Great, thanks! ###STOP###"),
        ("", "Bye. ###STOP###"),
    ],
)
def test_any_other_stop_ends_the_conversation(heard: str, text: str) -> None:
    assert not puts_stop_off(heard, read_message(text))


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("It fits.\nVERDICT: RIGHT", (True, "It fits.")),
        ("It tells too much.\n**Verdict:** wrong", (False, "It tells too much.")),
        ("VERDICT: RIGHT? No, it lies.\nVERDICT: WRONG", (False, "? No, it lies.")),
        ("<think>VERDICT: WRONG</think>Fine. VERDICT: RIGHT", (True, "Fine.")),
        ("VERDICT: WRONG", (False, "it does not follow the part.")),
        ("It is right.", None),
        ("", None),
    ],
)
def test_a_verdict_is_read(text: str, verdict: tuple[bool, str] | None) -> None:
    assert read_verdict(text) == verdict
