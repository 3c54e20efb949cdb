"""What programs do that cannot be changed, one situation each; see `request_trees` for the rest."""

import itertools

import miniatures
import numpy as np
import pytest
from tokendelta import (
    LogprobError,
    MessageError,
    Overflow,
    Profile,
    RewriteError,
    StateError,
    TokenIdError,
    Tree,
)
from tokendelta.probes import TOOLS

HELLO = [{"role": "user", "content": "Hello."}]


def user(text):
    return {"role": "user", "content": text}


def result(text, call_id="c1"):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def calling(arguments='{"key": "7"}', call_id="c1", name="find_order"):
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


class Program:
    """A tree over a miniature template, and an engine that says what it is told to."""

    def __init__(self, name="append-only", **options):
        self.tokenizer = miniatures.load(name)
        self.tree = Tree(Profile.from_tokenizer(self.tokenizer), **options)

    def commit(self, ticket, text="Good day.", message=None, **options):
        ids = self.tokenizer.encode(f"{text}<|im_end|>")
        said = message or {"role": "assistant", "content": text}
        scores = [-0.5] * len(ids)
        assert self.tree.commit(ticket, ids, scores, message=said, **options) is None
        return said

    def ask(self, history, text="Good day.", message=None, **options):
        ticket = self.tree.prepare(history, **options)
        said = self.commit(ticket, text, message)
        self.tree.delivered(ticket)
        return ticket, said

    def trained(self, **options):
        return [
            self.tokenizer.decode(sample.ids[sample.prompt_length :][sample.loss_mask == 1])
            for sample in self.tree.samples(**options).samples
        ]

    def text(self, ticket):
        return self.tokenizer.decode(ticket.prompt)


def test_a_loop_of_tool_calls_is_one_segment_whatever_the_program_drops() -> None:
    program = Program("drops thinking")
    history = list(HELLO)
    for turn in range(12):
        said = {**calling(call_id=f"c{turn}"), "reasoning_content": f"No {turn}."}
        text = f'<think>\nNo {turn}.\n</think>\n\n<tool_call>find_order {{"key": "7"}}</tool_call>'
        ticket, _ = program.ask(history, text, said)
        assert ticket.decision == ("extend" if turn else "new") and ticket.turn == turn
        told = calling('{ "key":"7" }', f"c{turn}")
        history += [{**told, "content": None}, result("sent", f"c{turn}")]
    (sample,) = program.tree.samples().samples
    assert sample.trained_tokens == len(program.tokenizer.encode(f"{program.trained()[0]}"))
    assert program.tokenizer.decode(sample.ids).count("</think>") == 12


def test_a_request_costs_what_is_new_in_it() -> None:
    program = Program()
    seen = []
    encode = program.tree._profile.encoder._inner.encode

    class Counting:
        def encode(self, text):
            seen[-1] += len(text)
            return encode(text)

    program.tree._profile.encoder._inner = Counting()
    history = list(HELLO)
    for turn in range(40):
        seen.append(0)
        _, said = program.ask(history, f"Answer {turn:03}.")
        history += [said, user(f"Question {turn:03}.")]
    assert len(set(seen[1:])) == 1 and program.tree.segments == 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_requests_in_flight_never_mix_and_end_in_any_order(order) -> None:
    program = Program()
    _, said = program.ask(HELLO)
    histories = [[*HELLO, said, user(text)] for text in ("One?", "Two?", "Three?")]
    tickets = [program.tree.prepare(history) for history in histories]
    prompts = [ticket.prompt.tolist() for ticket in tickets]
    for index in order:
        program.commit(tickets[index], f"Answer {index}.")
    assert [ticket.prompt.tolist() for ticket in tickets] == prompts
    assert [ticket.decision for ticket in tickets] == ["extend", "fork", "fork"]
    for ticket, history in zip(tickets, histories, strict=True):
        program.tree.delivered(ticket)
        assert program.text(ticket).count("user\n") == 2
        assert history[-1]["content"] in program.text(ticket)
    assert program.trained() == [
        "Good day.<|im_end|>Answer 0.<|im_end|>",
        "Answer 1.<|im_end|>",
        "Answer 2.<|im_end|>",
    ]


def test_an_edited_argument_reaches_the_prompt_and_the_sampled_turn_stays_trained() -> None:
    program = Program()
    text = '<tool_call>find_order {"key": "7"}</tool_call>'
    program.ask(HELLO, text, calling())
    edited = program.tree.prepare([*HELLO, calling('{"key": "8"}'), result("lost")])
    assert (edited.decision, edited.cause, edited.agreed) == ("new", "no turn agrees", 1)
    assert '"8"' in program.text(edited) and '"7"' not in program.text(edited)
    assert program.trained() == [f"{text}<|im_end|>"]


def test_a_shortened_text_is_another_turn() -> None:
    program = Program()
    program.ask(HELLO, "Good day. And more.")
    shortened = [*HELLO, {"role": "assistant", "content": "Good day."}, user("Why?")]
    assert program.tree.prepare(shortened).decision == "new"


def test_a_summary_in_place_of_history_starts_anew_and_goes_on_from_there() -> None:
    program = Program()
    history = list(HELLO)
    for turn in range(3):
        _, said = program.ask(history, f"Turn {turn}.")
        history += [said, user("More.")]
    summary = [user("So far: much."), user("More.")]
    ticket, said = program.ask(summary, "From the summary.")
    assert ticket.decision == "new"
    assert program.tree.prepare([*summary, said, user("And?")]).decision == "extend"
    assert program.trained() == [
        "Turn 0.<|im_end|>Turn 1.<|im_end|>Turn 2.<|im_end|>",
        "From the summary.<|im_end|>",
    ]


def test_a_sub_agent_beside_its_parent_has_a_segment_of_its_own() -> None:
    program = Program()
    parent, child = [user("Main task.")], [user("Part of it.")]
    for turn in range(3):
        for history in (parent, child):
            ticket, said = program.ask(history, f"Turn {turn}.")
            assert ticket.decision == ("extend" if turn else "new")
            history += [said, user("Go on.")]
    assert program.tree.segments == 2
    assert sum(sample.weight for sample in program.tree.samples().samples) == pytest.approx(1)


def test_other_tools_are_another_conversation_with_the_same_turns_behind_it() -> None:
    program = Program()
    _, said = program.ask(HELLO)
    history = [*HELLO, said, user("More.")]
    ticket = program.tree.prepare(history, tools=TOOLS)
    assert (ticket.decision, ticket.agreed) == ("new", 0)
    assert "find_order" in program.text(ticket)
    reordered = [{"function": TOOLS[0]["function"], "type": "function"}, TOOLS[1]]
    assert program.tree.prepare(history, tools=reordered).decision == "new"
    assert program.tree.prepare(history, tools=[]).decision == "extend"


def test_the_same_request_gets_the_same_answer_until_it_has_arrived() -> None:
    program = Program()
    first = program.tree.prepare(HELLO, params="hot")
    joined = program.tree.prepare(HELLO, params="hot", retry=True)
    assert (joined.decision, joined.cause) == ("replay", "marked as retry")
    assert joined.turn == first.turn and joined.status == "open"
    with pytest.raises(StateError, match="another request's"):
        program.commit(joined)
    said = program.commit(first)
    program.tree.undelivered(first, "connection reset")
    again = program.tree.prepare(HELLO, params="hot")
    assert (again.decision, again.cause) == ("replay", "not delivered")
    assert again.message == said and again.ids.tolist() == first.ids.tolist()
    assert again.logprobs.tolist() == [-0.5] * len(again.ids) and again.finish == "stop"
    program.tree.delivered(again)
    other = program.tree.prepare(HELLO, params="hot")
    assert (other.decision, other.cause) == ("fork", "asked again")
    assert program.tree.prepare(HELLO, params="cold").decision == "fork"
    assert program.tree.prepare(HELLO, params="hot", retry=True).turn == other.turn
    program.commit(other)
    program.tree.delivered(other)
    assert program.tree.prepare(HELLO, params="hot", retry=True).decision == "replay"
    assert program.trained() == ["Good day.<|im_end|>"] * 2


def test_parallel_requests_that_are_all_sent_again_get_one_turn_each() -> None:
    program = Program()
    tickets = [program.tree.prepare(HELLO) for _ in range(3)]
    assert [ticket.turn for ticket in tickets] == [0, 1, 2]
    again = [program.tree.prepare(HELLO, retry=True).turn for _ in range(4)]
    assert sorted(again[:3]) == [0, 1, 2] and again[3] in (0, 1, 2)


def test_a_connection_that_is_lost_before_the_answer_is_joined_by_the_next_request() -> None:
    program = Program()
    first = program.tree.prepare(HELLO)
    program.tree.undelivered(first, "client gone")
    joined = program.tree.prepare(HELLO)
    assert joined.decision == "replay" and joined.turn == 0
    assert program.tree.prepare(HELLO).decision == "fork"
    program.commit(first)
    assert joined.status == "sampled"


def test_a_turn_nobody_saw_is_listed_and_not_trained() -> None:
    program = Program()
    lost, unsure = (program.tree.prepare(HELLO) for _ in range(2))
    program.tree.undelivered(lost, "client gone")
    program.commit(lost)
    program.commit(unsure)
    failed = program.tree.prepare([user("Other.")])
    program.tree.abandon(failed, "engine: HTTP 500")
    program.tree.prepare([user("Another.")])
    found = program.tree.samples()
    assert found.samples == ()
    size = len(program.tokenizer.encode("Good day.<|im_end|>"))
    assert [(d.turn, d.tokens, d.reason, d.detail) for d in found.dropped] == [
        (0, size, "undelivered", "client gone"),
        (1, size, "undelivered", "delivery was not confirmed"),
        (2, 0, "abandoned", "engine: HTTP 500"),
        (3, 0, "abandoned", "still open"),
    ]


def test_a_history_that_holds_a_turn_proves_its_delivery() -> None:
    program = Program()
    first = program.tree.prepare(HELLO)
    said = program.commit(first)
    program.tree.undelivered(first, "stream cut before its end")
    ticket = program.tree.prepare([*HELLO, said, user("More.")])
    assert ticket.decision == "extend" and first.status == "delivered"
    program.tree.undelivered(first, "said too late")
    assert program.trained() == ["Good day.<|im_end|>"]


def test_a_turn_that_the_program_leaves_out_stays_trained() -> None:
    program = Program()
    program.ask(HELLO, "No call in here.")
    ticket, _ = program.ask([*HELLO, user("Format error: call a tool.")], "A call.")
    assert ticket.decision == "new" and "No call" not in program.text(ticket)
    assert program.trained() == ["No call in here.<|im_end|>", "A call.<|im_end|>"]


@pytest.mark.parametrize("name", ["append-only", "header stops"])
def test_a_request_that_failed_leaves_its_place_to_the_next(name) -> None:
    program = Program(name)
    said = program.ask(HELLO)[1]
    failed = program.tree.prepare([*HELLO, said, user("One?")])
    program.tree.abandon(failed, "engine")
    same = program.tree.prepare([*HELLO, said, user("One?")])
    assert same.decision == "extend" and same.turn == 2
    assert same.prompt.tolist() == failed.prompt.tolist()
    program.tree.abandon(same, "engine")
    other = program.tree.prepare([*HELLO, said, user("Two?")])
    assert other.decision == "extend" and program.tree.segments == 1
    assert "Two?" in program.text(other) and "One?" not in program.text(other)
    for gone in (failed, same):
        with pytest.raises(StateError, match="was abandoned"):
            _ = gone.prompt
    with pytest.raises(StateError, match="abandoned already"):
        program.commit(same)
    with pytest.raises(StateError, match="no answer to deliver"):
        program.tree.undelivered(same, "x")


def test_constrained_turns_are_context_unless_asked_for() -> None:
    program = Program()
    first = program.tree.prepare(HELLO)
    said = program.commit(first, "{}", constrained=True)
    program.ask([*HELLO, said, user("More.")], "Yes.")
    assert program.trained() == ["Yes.<|im_end|>"]
    assert program.trained(constrained="train") == ["{}<|im_end|>Yes.<|im_end|>"]
    (drop,) = program.tree.samples().dropped
    assert (drop.turn, drop.reason) == (0, "constrained")
    (sample,) = program.tree.samples().samples
    assert np.isfinite(sample.logprobs).tolist() == (sample.loss_mask == 1).tolist()


def test_handles_of_calls_never_enter_a_prompt() -> None:
    program = Program("looks up calls")
    ticket = program.tree.prepare(HELLO)
    sent, own = calling(call_id="call_7-MAC"), calling(call_id="c1")
    text = '<tool_call>find_order {"key": "7"}</tool_call>'
    program.commit(ticket, text, sent, own=own)
    answered = program.tree.prepare([*HELLO, sent, result("sent", "call_7-MAC")])
    assert "tool of find_order\nsent" in program.text(answered)
    edited = {**sent, "content": "edited"}
    foreign = program.tree.prepare([*HELLO, edited, result("sent", "call_7-MAC")])
    assert "tool of find_order\nsent" in program.text(foreign)


def test_a_turns_handle_tells_it_from_one_that_says_the_same_and_enters_no_prompt() -> None:
    program = Program("looks up calls")
    first = program.ask(HELLO, message={**calling(), "handle": "h-1"})
    second = program.ask(HELLO, message={**calling(), "handle": "h-2"})
    decided = {}
    for handle in ("h-2", "h-1", "h-3"):
        history = [*HELLO, {**calling(), "handle": handle}, result("found")]
        ticket = program.tree.prepare(history)
        decided[handle] = ticket.decision, ticket.slot.segment
        assert "h-" not in program.text(ticket)
        program.commit(ticket, "Done.", {"role": "assistant", "content": "Done."})
    assert decided["h-1"] == ("extend", first[0].slot.segment)
    assert decided["h-2"] == ("extend", second[0].slot.segment)
    assert decided["h-3"][0] == "new"


def test_a_turn_is_sent_again_as_it_was_sent_and_known_by_its_own_spelling() -> None:
    program = Program()
    first = program.tree.prepare(HELLO)
    sent = calling('{"key": "7",  "key": 0.1000000000000000055}')
    program.commit(first, "A call.", sent)
    program.tree.undelivered(first, "gone")
    assert program.tree.prepare(HELLO).message == sent
    assert program.tree.prepare([*HELLO, sent, result("x")]).decision == "extend"
    read = calling('{"key": 0.1}')
    assert program.tree.prepare([*HELLO, read, result("x")]).decision == "new"


def test_a_stop_string_that_the_engine_took_away_may_come_back() -> None:
    program = Program()
    ticket = program.tree.prepare(HELLO)
    said = {"role": "assistant", "content": "print(1)"}
    program.commit(ticket, "print(1)</code>", said, stops=["</code>"])
    told = {"role": "assistant", "content": "print(1)</code>"}
    assert program.tree.prepare([*HELLO, told, user("1")]).decision == "extend"
    assert program.tree.prepare([*HELLO, said, user("2")]).decision == "fork"


def test_a_turn_cut_by_length_goes_on_with_its_ending_put_back() -> None:
    program = Program()
    ticket = program.tree.prepare(HELLO)
    ids = program.tokenizer.encode("I was about")
    program.tree.commit(ticket, ids, [-0.5] * len(ids), "length")
    assert ticket.message == {"role": "assistant", "content": "I was about"}
    text = program.text(program.tree.prepare([*HELLO, ticket.message, user("Go on.")]))
    assert "I was about<|im_end|>\n<|im_start|>user\nGo on." in text


def test_a_template_that_rewrites_history_is_kept_forked_or_refused() -> None:
    text, history = "<think>\nx\n</think>\n\nHm.", None
    for policy, decision in (("keep", "extend"), ("fork", "new"), ("error", None)):
        program = Program("drops thinking", on_rewrite=policy)
        said = {"role": "assistant", "content": "Hm.", "reasoning_content": "x"}
        program.ask(HELLO, text, said)
        history = [*HELLO, {"role": "assistant", "content": "Hm."}, user("More.")]
        if decision is None:
            with pytest.raises(RewriteError):
                program.tree.prepare(history)
            assert program.tree.segments == program.tree.turns == 1
            continue
        ticket = program.tree.prepare(history)
        assert ticket.decision == decision
        assert ("x" in program.text(ticket)) == (policy == "keep")
        assert [rewrite.where for rewrite in program.tree.rewrites] == ["turn"]
        program.commit(ticket)
        again = program.tree.prepare(history)
        assert again.decision == "fork" and again.prompt.tolist() == ticket.prompt.tolist()


def test_what_does_not_fit_changes_nothing() -> None:
    program = Program(max_tokens=50)
    _, said = program.ask(HELLO)
    long = [*HELLO, said, user("word " * 60)]
    for history in (long, [user("word " * 60)]):
        assert isinstance(program.tree.prepare(history), Overflow)
    other = program.tree.prepare([*HELLO, said, user("ok")])
    assert other.decision == "extend"
    assert isinstance(program.tree.prepare(long), Overflow)
    assert program.tree.segments == 1 and program.tree.turns == 2
    over = program.tree.commit(other, [5] * 60, [-0.5] * 60)
    assert isinstance(over, Overflow) and other.status == "open"
    program.commit(other, "y")


@pytest.mark.parametrize(
    "history",
    [
        [],
        ["x"],
        [*HELLO, {"role": "assistant", "content": "x"}],
        [{"role": "robot", "content": "x"}],
        [{"role": "user", "content": 7}],
        [{"role": "user"}],
    ],
)
def test_what_is_no_history_is_refused_and_leaves_no_trace(history) -> None:
    program = Program()
    with pytest.raises(MessageError):
        program.tree.prepare(history)
    assert program.tree.turns == program.tree.segments == 0
    assert program.tree.prepare(HELLO).agreed == 0


def test_what_the_engine_gives_is_checked_and_leaves_the_ticket_open() -> None:
    program = Program()
    ticket = program.tree.prepare(HELLO)
    with pytest.raises(TokenIdError, match="turn 0"):
        program.tree.commit(ticket, [1, 10**7], [-0.5, -0.5])
    with pytest.raises(LogprobError, match="turn 0"):
        program.tree.commit(ticket, [1], [0.5])
    for message in ({"role": "user", "content": "x"}, {"role": "assistant", "content": 7}):
        with pytest.raises(MessageError, match="commit, turn 0: message 0"):
            program.tree.commit(ticket, [1], [-0.5], message=message)
    with pytest.raises(StateError, match="commit it first"):
        program.tree.delivered(ticket)
    with pytest.raises(StateError, match="nothing was committed"):
        _ = ticket.ids
    program.commit(ticket)
    with pytest.raises(StateError, match="sampled already"):
        program.commit(ticket)
    with pytest.raises(StateError, match="sampled already"):
        program.tree.abandon(ticket, "x")


def test_options_are_checked() -> None:
    for options in ({"max_tokens": 0}, {"on_rewrite": "x"}, {"specials": "x"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Program(**options)
    for options in ({"max_len": 0}, {"constrained": "x"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Program().tree.samples(**options)
