"""The record of an agent that cannot be changed: whole histories in, any number at a time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

from numpy.typing import ArrayLike

from tokendelta import answering
from tokendelta._core import CHECKED
from tokendelta.call_ids import ids_by_sent, with_own_ids
from tokendelta.echo import without_handle
from tokendelta.errors import MessageError, StateError
from tokendelta.history import Histories, Known, Node, Path, key_of
from tokendelta.inputs import check_choice, checked_scores, raise_refused, side_streams
from tokendelta.invariants import check_record
from tokendelta.probes import Messages
from tokendelta.profile import Profile
from tokendelta.rendering import Message, Tool, check_messages
from tokendelta.sample import Drop, Overflow, Rewrite, SampleSet
from tokendelta.sample_set import Withheld, make_samples
from tokendelta.segment import Finish, Turn
from tokendelta.special_text import by_policy
from tokendelta.state import OnRewrite, Record, SessionState, Specials
from tokendelta.ticket import Cause, Decision, Slot, Ticket, to_replay

_SAID = frozenset(("assistant",))


class Tree:
    """Exact token accounting of one rollout whose program sends whole histories.

    Each request is `prepare`d into a ticket, sampled by the caller, and `commit`ted or `abandon`ed;
    then the caller says whether the answer was `delivered`. Any number of tickets may be open: each
    has a segment of its own to write to, so requests in flight never mix, whatever order they end
    in. Calls themselves are not thread-safe and none of them waits.

    A history is compared with the record message by message. What came from outside has to be equal
    to what came before; a turn is found again by the closed list of `echo`, in which containment
    has no place. With T the turn that the last assistant message of a history is an echo of:

    1. **replay**: the same request, which is the same history, tools and `params`, asked for a turn
       that did not arrive, or is marked as a retry. No new turn: the ticket is the earlier turn's.
    2. **extend**: T is the last of its segment. The prompt is its ids, bit for bit, and the
       continuation for the messages behind it.
    3. **fork**: T goes on elsewhere already, or the same request was answered and comes again as a
       sample of its own. A new segment shares the ids up to there.
    4. **new**: no turn agrees (an edited turn, a summary in place of history, other tools), or the
       template rewrites history and `on_rewrite` is "fork". A segment with a full render of the
       history, as the client sent it where no turn agrees. What was sampled before stays as it is
       and is trained.

    The decision depends on the requests, in their order, and on what is said of deliveries: not on
    when sampling ends. Apart from reading the history once, and from a copy of its ids for a fork,
    it costs what the messages behind T cost.

    Only turns that were delivered are trained: no program has seen the others. A history that holds
    a turn proves that it was delivered.
    """

    __slots__ = ("_histories", "_holders", "_own_ids", "_profile", "_record", "_slots")

    def __init__(
        self,
        profile: Profile,
        *,
        max_tokens: int | None = None,
        on_rewrite: OnRewrite = "keep",
        specials: Specials = "parity",
    ) -> None:
        """The options are those of `Session`; tools come with each request."""
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}, it must be at least 1")
        check_choice("on_rewrite", on_rewrite, ("keep", "fork", "error"))
        check_choice("specials", specials, ("parity", "escape", "reject"))
        self._profile = profile
        self._record = Record(profile, max_tokens, on_rewrite, specials)
        self._histories = Histories(profile.think_tags)
        self._slots: list[Slot] = []
        # The turn that a segment ends with or is written to by.
        self._holders: dict[int, Slot] = {}
        # Ids of calls as the template is to see them, by those that were sent to the client.
        self._own_ids: dict[str, str] = {}

    @property
    def turns(self) -> int:
        """Turns that were asked for."""
        return len(self._slots)

    @property
    def segments(self) -> int:
        """Token sequences that the tree holds."""
        return len(self._record.segments)

    @property
    def rewrites(self) -> Sequence[Rewrite]:
        """Where the template shows history otherwise than it was sampled or sent."""
        return self._record.rewrites

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the token and log-prob buffers."""
        return sum(segment.tokens.nbytes for segment in self._record.segments)

    def known(self, message: Message) -> Known:
        """A message of which `prepare` need not read anything again.

        A caller that is sent the same messages again and again gives `prepare` these in their
        place, the same object each time: a history then costs what is new of it. They are dicts
        with the message's keys and must not be changed. Raises MessageError.
        """
        return self._histories.known(message)

    def prepare(
        self,
        history: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        params: Hashable = "",
        retry: bool = False,
    ) -> Ticket | Overflow:
        """Find the place of a request and its prompt.

        history  all messages, in the form of the OpenAI chat API; the last asks for a turn.
        tools    given to the template; the profile's own tools if None, no tools if empty.
        params   whatever else makes two requests the same: sampling parameters, but nothing about
                 transport, such as streaming.
        retry    the client marks the request as sent again.

        Returns Overflow, with nothing changed, if the prompt is longer than max_tokens. Raises
        MessageError, TemplateError, SpecialTextError and RewriteError with nothing changed.
        """
        if not history or not isinstance(history[-1], Mapping):
            raise MessageError("prepare: the history holds no message that asks for a turn")
        if history[-1].get("role") == "assistant":
            raise MessageError(
                f"prepare: message {len(history) - 1} is from the assistant; the last one must ask"
                " for a turn"
            )
        root = self._histories.root(self._profile.tools if tools is None else tools)
        path = self._histories.find(root, history)
        for node in path.ends:
            slot = to_replay(node.slots, params, retry)
            if slot is not None:
                return self._replay(slot, path)
        state = SessionState(self._record, root.tools)
        for node in path.ends:
            if node.asked is not None:
                return self._ask_again(state, node, path, params)
        if path.bases:
            return self._go_on(state, path, history, params)
        return self._start(state, path, history, params)

    def commit(
        self,
        ticket: Ticket,
        ids: Sequence[int] | ArrayLike,
        logprobs: Sequence[float] | ArrayLike,
        finish: Finish = "stop",
        *,
        message: Message | None = None,
        own: Message | None = None,
        stops: Sequence[str] = (),
        constrained: bool = False,
        side: Mapping[str, ArrayLike] | None = None,
    ) -> Overflow | None:
        """Append what the engine sampled for a ticket, verbatim.

        ids, logprobs, finish and side are those of `Session.append_sampled`.

        message      the turn as it is sent to the client; the decoded ids if None. A `handle` in it
                     is a name that the client may send back, by which the turn is told from others
                     that say the same; templates do not see it.
        own          the same as the template is to see it, if that is another: with the ids of
                     calls that the model wrote, say, in place of the caller's handles.
        stops        stop strings that are in the ids and were taken off the message.
        constrained  sampled under a grammar, a bias or penalties: the log-probs are of another
                     distribution than the policy's, and `samples` masks the turn.

        Returns None, or Overflow with nothing appended. Raises StateError for a ticket that is not
        open, LengthError, TokenIdError and LogprobError with the turn and the index.
        """
        slot = _open_slot(ticket, "commit")
        check_choice("finish", finish, ("stop", "length", "abort"))
        sampled, scores = checked_scores(ids, logprobs, slot.number)
        segment, count = slot.segment, len(sampled)
        assert segment.tokens.size == slot.prompt, "an open turn has its segment for itself"
        given = [sent for sent in (message, own) if sent is not None]
        given = [without_handle(sent) for sent in given]
        shown = check_messages(given, "commit, turn", slot.number, _SAID)[-1] if given else None
        key = None if message is None else key_of(message, 0)
        rows = side_streams(side, count, slot.number)
        overflow = self._record.overflow(count, slot.prompt)
        if overflow is not None:
            return overflow
        limit = self._profile.vocab_size
        refused = segment.tokens.append_sampled(sampled, scores, limit)
        if refused is not None:
            raise_refused(slot.number, refused, sampled, scores, limit)
        slot.turn = Turn(slot.number, finish, message=shown, side=rows)
        segment.add_sampled(slot.turn, count)
        slot.block, slot.messages = len(segment.blocks) - 1, len(segment.messages)
        slot.message = _decoded(self._profile, slot) if message is None else dict(message)
        slot.stops, slot.constrained = tuple(stops), constrained
        slot.status, slot.reason = ("undelivered", slot.lost) if slot.lost else ("sampled", "")
        slot.lost = ""
        if own is not None:
            self._own_ids.update(ids_by_sent(slot.message, own))
        self._histories.add_turn(slot, key or key_of(slot.message, 0), slot.message)
        if CHECKED:
            check_record(self._record)
        return None

    def abandon(self, ticket: Ticket, reason: str) -> None:
        """Give up a ticket that nothing will be committed to, as when the engine failed."""
        slot = _open_slot(ticket, "abandon")
        slot.status, slot.reason, slot.lost = "abandoned", reason, ""

    def delivered(self, ticket: Ticket) -> None:
        """The client has the whole answer. Raises StateError before `commit`."""
        slot = ticket.slot
        if slot.turn is None:
            raise StateError(f"turn {slot.number} is {slot.status}; commit it first")
        slot.status, slot.reason = "delivered", ""

    def undelivered(self, ticket: Ticket, reason: str) -> None:
        """The client is gone before it had the whole answer: the same request is answered with it
        again. A turn that is still open may go on for such a request."""
        slot = ticket.slot
        if slot.status == "abandoned":
            raise StateError(f"turn {slot.number} was abandoned: there is no answer to deliver")
        if slot.turn is None:
            slot.lost = reason
        elif not slot.proven:
            slot.status, slot.reason = "undelivered", reason

    def samples(
        self, max_len: int | None = None, *, constrained: Literal["mask", "train"] = "mask"
    ) -> SampleSet:
        """Everything that can be trained, one sample a segment, as in `Session.samples`.

        Turns that were not delivered, were abandoned, or are constrained (unless those are to be
        trained) are listed in `.dropped` with the reason that was given.
        """
        if max_len is not None and max_len < 1:
            raise ValueError(f"max_len is {max_len}, it must be at least 1")
        check_choice("constrained", constrained, ("mask", "train"))
        withheld: Withheld = {}
        unsampled = []
        for slot in self._slots:
            if slot.turn is None:
                why = slot.reason or slot.lost or "still open"
                unsampled.append(Drop(slot.number, slot.segment.number, 0, "abandoned", why))
            elif slot.status != "delivered":
                withheld[slot.turn] = "undelivered", slot.reason or "delivery was not confirmed"
            elif slot.constrained and constrained == "mask":
                withheld[slot.turn] = "constrained", ""
        found = make_samples(self._record, max_len, withheld)
        return SampleSet(found.samples, (*found.dropped, *unsampled))

    def _replay(self, slot: Slot, path: Path) -> Ticket:
        cause: Cause = "not delivered" if slot.lost or slot.reason else "marked as retry"
        _prove(slot.node)
        slot.served += 1
        slot.lost = slot.reason = ""
        if slot.status == "undelivered":
            slot.status = "sampled"
        return Ticket(slot, "replay", cause, path.agreed)

    def _ask_again(self, state: SessionState, node: Node, path: Path, params: Hashable) -> Ticket:
        """Stand at a prompt that was made before: in its own segment if nothing was sampled there,
        else in one that shares it."""
        assert node.asked is not None, "the caller looked"
        segment, mark, reasoned = node.asked
        holder = self._holders[segment.number]
        if holder.status == "abandoned" and segment.tokens.size == mark.tokens:
            state.enter(segment)
            state.reasoned = reasoned
            decision, cause = holder.decision, holder.cause
            return self._open(state, node, params, path, decision, cause, holder.base)
        state.enter(self._record.branch(segment, mark))
        state.reasoned = reasoned
        return self._open(state, node, params, path, "fork", "asked again")

    def _go_on(
        self, state: SessionState, path: Path, history: Sequence[Message], params: Hashable
    ) -> Ticket | Overflow:
        """Continue behind the turn that the last assistant message is an echo of."""
        base = path.bases[0].slot
        assert base is not None and base.turn is not None, "a base is a committed turn"
        answer = self._checked(history[path.told :])
        segment = base.segment
        inside = self._free(base)
        if not inside:
            behind = segment.behind(base.block, base.messages)
            segment = self._record.branch(segment, behind)
        state.resume(segment, base.turn, base.reasoned)
        prompt: Any = None
        try:
            prompt = answering.answer(state, answer)
        finally:
            moved = state.segment is not segment
            if not inside and (moved or prompt is None or isinstance(prompt, Overflow)):
                self._record.remove(segment)
        if isinstance(prompt, Overflow):
            return prompt
        node = self._histories.add(path.bases[0], path.keys[path.told :])
        if moved:
            return self._open(state, node, params, path, "new", "template rewrites history")
        decision: Decision = "extend" if inside else "fork"
        cause: Cause = "" if inside else "turn goes on elsewhere"
        return self._open(state, node, params, path, decision, cause, base)

    def _free(self, base: Slot) -> bool:
        """Whether the segment of a turn can go on behind it. What was appended for a request that
        was abandoned since is taken back."""
        holder = self._holders[base.segment.number]
        if holder is base:
            return True
        if holder.base is not base or holder.status != "abandoned" or holder.prompt < 0:
            return False
        base.segment.rewind(base.segment.behind(base.block, base.messages))
        holder.node.asked = None
        for slot in holder.node.slots:
            if slot.segment is base.segment:
                slot.prompt = -1
        self._holders[base.segment.number] = base
        return True

    def _start(
        self,
        state: SessionState,
        path: Path,
        history: Sequence[Message],
        params: Hashable,
    ) -> Ticket | Overflow:
        """Render a history of which no turn can go on."""
        prompt = state.start(self._checked(history))
        if isinstance(prompt, Overflow):
            return prompt
        node = self._histories.add(path.deepest, path.keys[path.agreed :])
        cause: Cause = "no turn agrees" if path.told else "first request"
        return self._open(state, node, params, path, "new", cause)

    def _checked(self, messages: Sequence[Message]) -> Messages:
        """Messages as the template is to see them: arguments decoded, ids of calls the model's."""
        plain = [without_handle(one) if isinstance(one, Mapping) else one for one in messages]
        checked = check_messages(plain, "prepare, turn", len(self._slots))
        if self._own_ids:
            checked = [with_own_ids(message, self._own_ids) for message in checked]
        return by_policy(self._record, checked, len(self._slots))

    def _open(
        self,
        state: SessionState,
        node: Node,
        params: Hashable,
        path: Path,
        decision: Decision,
        cause: Cause,
        base: Slot | None = None,
    ) -> Ticket:
        """A turn at the prompt that the state stands at."""
        segment = state.current("prepare")
        size = segment.tokens.size
        slot = Slot(
            len(self._slots), node, params, decision, cause, segment, base, size, state.reasoned
        )
        slot.tools = state.tools
        self._slots.append(slot)
        self._record.turns += 1
        self._holders[segment.number] = slot
        node.slots.append(slot)
        if node.asked is None:
            node.asked = segment, segment.tip(), state.reasoned
        _prove(node)
        self._histories.remember(path, node)
        if CHECKED:
            check_record(self._record)
        return Ticket(slot, decision, cause, path.agreed)


def _prove(node: Node | None) -> None:
    """A history held these turns: they were delivered."""
    while node is not None:
        slot = node.slot
        if slot is not None:
            if slot.proven:
                return
            slot.proven, slot.status, slot.reason = True, "delivered", ""
        node = node.parent


def _open_slot(ticket: Ticket, what: str) -> Slot:
    slot = ticket.slot
    if ticket.decision == "replay":
        raise StateError(f"{what}: turn {slot.number} is another request's; send it again")
    if slot.status != "open":
        raise StateError(f"{what}: turn {slot.number} is {slot.status} already")
    return slot


def _decoded(profile: Profile, slot: Slot) -> dict[str, Any]:
    block = slot.segment.blocks[slot.block]
    text = profile.decode(slot.segment.tokens, block.start, block.stop)
    return {"role": "assistant", "content": text}
