import copy
from collections import Counter
from random import Random

import miniatures
import pytest
from conversation_trees import text_of
from conversations import CONVERSATIONS
from driving import TEMPLATES, load_template
from token_delta_contract import contract
from tokendelta import get_token_delta


def outcome(call, *arguments, **options):
    try:
        return call(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error)


def inline(messages):
    """The messages with reasoning and calls as text in the content, as tau-bench keeps them."""
    result = []
    for message in messages:
        content = message["content"]
        if message.get("reasoning_content"):
            content = f"<think>\n{message['reasoning_content']}\n</think>\n\n{content}"
        for call in message.get("tool_calls", []):
            content += f'\n<tool_call>\n{{"name": "{call["function"]["name"]}"}}\n</tool_call>'
        plain = {key: message[key] for key in ("role", "name", "tool_call_id") if key in message}
        result.append({**plain, "content": content})
    return result


def compare(tokenizer, messages, seen):
    """Grow the conversation one message at a time, as a rollout loop does."""
    grown = []
    for message in messages:
        grown.append(message)
        for flag in (False, True):
            expected = outcome(contract, tokenizer, grown, flag)
            found = outcome(get_token_delta, tokenizer, grown, include_generation_prompt=flag)
            assert found == expected
            seen["returned" if isinstance(expected[0], list) else "raised"] += 1


@pytest.mark.parametrize("name", miniatures.MINIATURES)
def test_equal_results_and_errors_on_miniatures(name) -> None:
    tokenizer, seen = miniatures.load(name), Counter()
    for conversation in CONVERSATIONS:
        compare(tokenizer, conversation.messages, seen)
        compare(tokenizer, inline(conversation.messages), seen)
    assert seen["returned"] > 20


@pytest.mark.skipif(not TEMPLATES, reason="TURNWISE_SHARED_DATA is not set")
@pytest.mark.parametrize("name", TEMPLATES)
def test_equal_results_and_errors_on_templates(name) -> None:
    tokenizer, seen = load_template(name), Counter()
    for conversation in CONVERSATIONS:
        compare(tokenizer, conversation.messages, seen)
        compare(tokenizer, inline(conversation.messages), seen)
    assert seen["returned"] + seen["raised"] > 200


def test_equal_results_on_random_conversations() -> None:
    rnd, seen = Random(7), Counter()
    tokenizers = [miniatures.load(name) for name in miniatures.MINIATURES]
    for _ in range(300):
        roles = rnd.choices(["user", "assistant", "tool"], k=rnd.randint(1, 8))
        messages = [{"role": role, "content": text_of(rnd)} for role in ["system", *roles]]
        compare(rnd.choice(tokenizers), messages[rnd.randint(0, 1) :], seen)
    assert seen["returned"] > 1000 < seen["raised"] + 1000


def test_history_that_was_edited_in_place_is_noticed() -> None:
    tokenizer = miniatures.load("drops thinking")
    messages = copy.deepcopy(CONVERSATIONS[1].messages)
    get_token_delta(tokenizer, messages[:5])
    messages[0]["content"] = "Something else."
    messages[3]["content"] = "<think>\nx\n</think>\n\nOther."
    assert get_token_delta(tokenizer, messages[:6]) == contract(tokenizer, messages[:6], False)


def test_a_template_that_was_replaced_is_noticed() -> None:
    tokenizer = miniatures.load("append-only")
    messages = CONVERSATIONS[1].messages
    get_token_delta(tokenizer, messages[:4])
    other = miniatures.load("json tools")
    tokenizer.chat_template, tokenizer._template = other.chat_template, other._template
    assert get_token_delta(tokenizer, messages[:5]) == contract(tokenizer, messages[:5], False)


def test_plain_messages_of_a_known_template_are_not_rendered() -> None:
    tokenizer = miniatures.load("append-only")
    messages = [{"role": r, "content": "Hm."} for r in ("user", "assistant") * 4]
    for count in range(1, 5):
        get_token_delta(tokenizer, messages[:count])
    tokenizer.apply_chat_template = None
    for count in range(5, 9):
        ids, mask = get_token_delta(tokenizer, messages[:count], include_generation_prompt=True)
        assert len(ids) == len(mask)


def test_a_tokenizer_with_only_the_two_methods_of_the_contract_is_enough() -> None:
    class Bytes:
        def apply_chat_template(self, messages, *, add_generation_prompt, tokenize):
            text = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in messages)
            return text + "<assistant>" * add_generation_prompt

        def encode(self, text, *, add_special_tokens):
            # The end of a header merges with a newline behind it.
            return list(text.replace(">\n", "\x00").encode())

    tokenizer = Bytes()
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\nb"}]
    for flag in (False, True):
        found = get_token_delta(tokenizer, messages, include_generation_prompt=flag)
        assert found == contract(tokenizer, messages, flag)
    ids, mask = get_token_delta(tokenizer, messages, include_generation_prompt=True)
    assert ids[10] == 0 and mask[10] == 0 and mask[11] == 1


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(ValueError, match="empty conversation"):
        get_token_delta(miniatures.load("append-only"), [])
