"""What the offline user is good for, on every task, and that it is a pure function."""

import asyncio
import json
import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taubench import SPLITS, STOP, Action, Environment, Task, load_tasks, user_profile
from taubench.flags import is_write
from taubench.users import OfflineUser
from taubench.users.offline import MAX_REPLIES
from taubench.users.script import first_person, split_sentences, write_script
from turnwise.users import User, UserReply

ALL_SPLITS = [(domain, split) for domain in SPLITS for split in SPLITS[domain]]
NOT_FOUND_BY_ITS_OWN_WORDS = "retail/test/64"


@dataclass
class ScriptedAgent:
    """Finds the account from the user's words alone, then replays the ground truth.

    `listens_first` hears all requests before it acts; otherwise it asks whether there is anything
    else after every write.
    """

    task: Task
    user: OfflineUser
    listens_first: bool = True
    heard: list[str] = field(default_factory=list)
    account: str = ""
    over: bool = False

    def __post_init__(self) -> None:
        script = write_script(self.task.user_id, self.task.instruction, user_profile(self.task))
        self.environment = Environment(self.task)
        self.heard.append(self.user.start(script))

    def say(self, text: str) -> str:
        if self.over:
            return ""
        self.environment.step(Action.respond(text))
        reply = self.user.answer(text)
        self.over = self.environment.hear(reply.text, reply.done).done
        self.heard.append(reply.text)
        return reply.text

    def call(self, name: str, **arguments: str) -> str:
        return self.environment.step(Action(name, arguments)).observation

    def find_account(self) -> None:
        if self.task.domain == "airline":
            reply = self.say("Could you please provide your user id?")
            found = re.search(r"\b[a-z]+_[a-z]+_\d{4}\b", reply)
            self.account = found.group() if found else ""
            return
        reply = self.say("May I have the email address of your account?")
        if email := re.search(r"[\w.]+@[\w.]+\w", reply):
            self.account = self.call("find_user_id_by_email", email=email.group())
        if not self.account or self.account.startswith("Error"):
            reply = self.say("Could you tell me your first and last name and your zip code?")
            name = re.search(r"name is (\w+) (\w+)", reply)
            zip_code = re.search(r"\b\d{5}\b", reply)
            if name and zip_code:
                self.account = self.call(
                    "find_user_id_by_name_zip",
                    first_name=name[1],
                    last_name=name[2],
                    zip=zip_code.group(),
                )
        if not self.account or self.account.startswith("Error"):
            reply = self.say("What is your user id, please?")
            found = re.search(r"\b[a-z]+_[a-z]+_\d{4}\b", reply)
            self.account = found.group() if found else ""

    def listen(self) -> None:
        for _ in range(30):
            if self.say("What would you like me to do next?") == "That is everything I need.":
                return
        raise AssertionError(f"{self.task.id}: the user never finishes: {self.heard}")

    def replay(self) -> None:
        for action in self.task.actions:
            if self.over or action.name == "transfer_to_human_agents":
                continue
            if is_write(action):
                self.say(f"I will make this change: {action.name}. Do you confirm (yes/no)?")
            if not self.over:
                self.environment.step(action)
            if is_write(action) and not self.listens_first:
                self.say("Done. Is there anything else I can help you with?")

    def run(self) -> float:
        self.find_account()
        if self.listens_first:
            self.listen()
            self.say("What is the order number?")
        self.replay()
        if self.task.outputs:
            self.say(f"Here is what you asked for: {'; '.join(self.task.outputs)}")
        for _ in range(MAX_REPLIES):
            self.say("Is there anything else I can help you with?")
        assert self.over
        return self.environment.score().reward


def conversation(user: OfflineUser, task: Task, texts: list[object]) -> list[str]:
    async def talk() -> list[str]:
        first = await user.reset(task)
        return [first, *[(await user.reply(text)).text for text in texts]]

    return asyncio.run(talk())


@pytest.mark.parametrize(("domain", "split"), ALL_SPLITS)
def test_an_agent_that_listens_first_solves_every_task(domain: str, split: str) -> None:
    lost, failed = [], []
    for task in load_tasks(domain, split):
        agent = ScriptedAgent(task, OfflineUser())
        if agent.run() != 1.0:
            failed.append(task.id)
        if agent.account != task.user_id:
            lost.append(task.id)
    assert failed == []
    assert lost == [
        task for task in [NOT_FOUND_BY_ITS_OWN_WORDS] if task.startswith(f"{domain}/{split}")
    ]


@pytest.mark.parametrize(("domain", "split"), ALL_SPLITS)
def test_every_order_number_that_the_instruction_holds_and_the_task_needs_is_spoken(
    domain: str, split: str
) -> None:
    for task in load_tasks(domain, split):
        needed = {
            str(value)
            for action in task.actions
            for name, value in action.kwargs.items()
            if name in ("order_id", "reservation_id") and str(value) in task.instruction
        }
        agent = ScriptedAgent(task, OfflineUser())
        agent.run()
        spoken = " ".join(agent.heard)
        assert [number for number in needed if number not in spoken] == [], task.id


def test_more_closing_turns_forgive_an_agent_that_asks_too_early() -> None:
    solved = []
    for closing_turns in (0, 1, 3):
        solved.append(
            sum(
                ScriptedAgent(task, OfflineUser(closing_turns=closing_turns), False).run()
                for task in load_tasks("retail", "test")
            )
        )
    assert solved == sorted(solved)
    assert solved[0] < 115 == solved[2]


def test_the_user_never_speaks_of_what_its_instruction_does_not_hold() -> None:
    for task in load_tasks("retail", "train")[::5]:
        agent = ScriptedAgent(task, OfflineUser(opening="everything"))
        agent.run()
        spoken = set(re.findall(r"#W\d+|\w+_\d{7}|[\w.]+@[\w.]+\w|\d{5,}", " ".join(agent.heard)))
        assert all(word in task.instruction for word in spoken), task.id


TEXTS = st.lists(
    st.sampled_from(
        [
            "How can I help you?",
            "Please provide your email and your zip code.",
            "Shall I proceed (yes/no)?",
            "Why do you want that?",
            "What is the order number?",
            "It is done.",
            "Anything else?",
            None,
            "",
            5,
        ]
    )
    | st.text(),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(index=st.integers(0, 114), texts=TEXTS)
def test_the_same_task_and_texts_give_the_same_replies(index: int, texts: list[object]) -> None:
    task = load_tasks("retail", "test")[index]
    used = OfflineUser()
    conversation(used, load_tasks("airline", "test")[3], ["Anything else?"] * 5)
    assert conversation(used, task, texts) == conversation(OfflineUser(), task, texts)


@settings(max_examples=60, deadline=None)
@given(
    text=st.none() | st.integers() | st.text() | st.sampled_from(["Hello?", "Yes/no?", "Email?"])
)
def test_every_conversation_ends_and_stays_ended(text: object) -> None:
    replies = conversation(
        OfflineUser(), load_tasks("retail", "test")[1], [text] * (MAX_REPLIES + 3)
    )
    assert STOP in replies[: MAX_REPLIES + 1]
    assert set(replies[replies.index(STOP) :]) == {STOP}


def test_a_user_who_has_left_does_not_come_back() -> None:
    texts: list[object] = ["I am transferring you to a human agent.", "How can I help?", "Why?"]
    assert conversation(OfflineUser(), load_tasks("retail", "test")[1], texts)[1:] == [STOP] * 3


def test_silence_ends_the_conversation_after_three_turns() -> None:
    replies = conversation(OfflineUser(), load_tasks("retail", "test")[1], [None, "", 5])
    assert replies[1:] == ["Hello? Are you still there?"] * 2 + [STOP]


def test_a_transfer_ends_the_conversation_but_the_offer_of_one_does_not() -> None:
    task = load_tasks("retail", "test")[1]
    told = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
    assert conversation(OfflineUser(), task, [told])[-1] == STOP
    offered = "Would you like to be transferred to a human agent?"
    assert conversation(OfflineUser(), task, [offered])[-1] != STOP


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        ("Could you provide your email address?", "I don't remember that."),
        ("May I have your name and zip code?", "My name is Yusuf Rossi. My zip code is 19122."),
        ("To proceed, please verify your full name.", "My name is Yusuf Rossi."),
        ("I verified your email. Do you confirm the exchange (yes/no)?", "Yes, please proceed."),
        ("Shall I go ahead?", "Yes, please proceed."),
        ("Which order number is it?", "It is #W2378156."),
        ("What is the reason?", "I have no particular reason."),
    ],
)
def test_a_question_is_answered_from_what_the_user_knows(question: str, reply: str) -> None:
    task = load_tasks("retail", "test")[0]
    assert conversation(OfflineUser(), task, [question])[-1] == reply


def test_other_words_draw_the_next_request() -> None:
    task = load_tasks("retail", "train")[360]
    replies = conversation(OfflineUser(), task, ["Done.", "How can I help?", "Okay."])
    assert [reply.split()[0] for reply in replies[:3]] == ["For", "Return", "Cancel"]
    assert replies[3] == "That is everything I need."


def test_an_opening_with_everything_suits_an_agent_that_cannot_ask() -> None:
    task = load_tasks("retail", "train")[60]
    user = OfflineUser(opening="everything", patience=1)
    assert conversation(user, task, ["Done."]) == [
        "My name is Raj Li. My zip code is 76184. Cancel order #W8967935 because no longer needed.",
        STOP,
    ]


def test_the_name_says_which_user_made_a_score() -> None:
    assert OfflineUser().name == "offline-1"
    assert OfflineUser(opening="everything", patience=1).name == (
        "offline-1(opening=everything,patience=1)"
    )


def test_wrong_options_and_a_reply_before_the_first_message_are_refused() -> None:
    with pytest.raises(ValueError, match="patience at least 1, got 1 and 0"):
        OfflineUser(patience=0)
    with pytest.raises(ValueError, match="'request' or 'everything', got 'all'"):
        OfflineUser(opening="all")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="reset"):
        OfflineUser().answer("Hello")


def test_the_offline_user_is_a_user() -> None:
    user: User = OfflineUser()
    task = load_tasks("retail", "test")[0]

    async def talk() -> UserReply:
        await user.reset(task)
        return await user.reply("Hello")

    assert isinstance(asyncio.run(talk()), UserReply)


@pytest.mark.parametrize(
    ("sentence", "spoken"),
    [
        ("You want to return your watch", "I want to return my watch."),
        ("Mention that you're a Gold member.", "I am a Gold member."),
        ("You want the agent to refund you.", "I want you to refund me."),
        ("Insist on a refund.", "I insist on a refund."),
        ("Ask the agent to give you a card.", "I want to ask you to give me a card."),
    ],
)
def test_instructions_are_spoken_in_the_first_person(sentence: str, spoken: str) -> None:
    assert first_person(sentence) == spoken


def test_sentences_end_neither_in_abbreviations_nor_in_addresses() -> None:
    text = (
        "Write to a.b@c.com. You want 2 tshirts (i.e. Your size). Return #W1 via x: A; Cancel #W2"
    )
    assert split_sentences(text) == [
        "Write to a.b@c.com.",
        "You want 2 tshirts (i.e. Your size).",
        "Return #W1 via x: A;",
        "Cancel #W2",
    ]


def test_directions_for_acting_and_introductions_are_not_spoken() -> None:
    task = load_tasks("retail", "test")[6]
    script = write_script(task.user_id, task.instruction, user_profile(task))
    spoken = " ".join(script.requests)
    assert "If the agent asks for confirmation" in task.instruction
    assert "confirmation" not in spoken and task.user_id not in spoken
    assert script.facts == {"user id": "mei_kovacs_8020", "zip code": "28236"}
    assert json.dumps(script.requests).isascii()
