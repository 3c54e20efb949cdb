"""Small chat templates of ours, one for each way in which templates behave."""

from __future__ import annotations

from dataclasses import dataclass

from chat_tokenizer import ChatTokenizer


@dataclass(frozen=True)
class Miniature:
    """A template, the tokens it needs, and what the audit must find."""

    template: str
    stop_style: str
    bos: str = "<|endoftext|>"
    eos: str = "<|im_end|>"


_PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TOOL_LIST = (
    "{% if tools %}<|im_start|>tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
)
_CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
)

APPEND_ONLY = (
    _TOOL_LIST
    + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    + _CALLS
    + "<|im_end|>\n{% endfor %}"
    + _PROMPT
)
NO_SEPARATOR = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|head|>{{ m.content | trim }}"
    + _CALLS
    + "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|head|>{% endif %}"
)
GROUPED_TOOLS = (
    _TOOL_LIST + "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}\n"
    "<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}" + _CALLS + "<|im_end|>\n"
    "{% endif %}{% endfor %}" + _PROMPT
)
JSON_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content or '' }}{% endif %}"
    + _CALLS
    + "<|im_end|>\n{% endfor %}"
    + _PROMPT
)
DROPS_THINKING = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% set text = m.content or '' %}{% set why = m.reasoning_content or '' %}"
    "{% if '</think>' in text %}{% set why = text.split('</think>')[0].split('<think>')[-1] %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or why) %}"
    "<think>\n{{ why.strip('\n') }}\n</think>\n\n{% endif %}{{ text }}"
    + _CALLS
    + "<|im_end|>\n{% endfor %}"
    + _PROMPT
)
OPENS_THINKING = DROPS_THINKING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
PROMPT_TAKEN_BACK = APPEND_ONLY.replace(
    "assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}"
)
KEEPS_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content or '' }}" + _CALLS + "<|im_end|>\n{% endfor %}" + _PROMPT
)
HEADER_STOPS = (
    "[gMASK]<sop>{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}"
    "\n<tool_response>{{ m.content }}</tool_response>"
    "{% else %}<|{{ m.role }}|>\n{{ m.content or '' }}" + _CALLS + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    # Named so that the tokenizer learns them: <|user|> <|assistant|> <|system|>
    "{# <|user|> <|assistant|> <|system|> <|observation|> #}"
)
DEFERRED_STOP = (
    "{% for m in messages %}{% if not loop.first and messages[loop.index0 - 1].role =="
    " 'assistant' %}<|close|>{% endif %}<|{{ m.role }}|>{{ m.content or '' }}"
    + _CALLS
    + "{% endfor %}"
    "{% if add_generation_prompt %}{% if messages[-1].role == 'assistant' %}<|close|>{% endif %}"
    "<|assistant|>{% endif %}{# <|user|> <|assistant|> <|system|> <|tool|> #}"
)
OTHER_LAST_STOP = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content or '' }}"
    + _CALLS
    + "{% if"
    " loop.last and m.role == 'assistant' %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}"
)
TEXT_ONLY = (
    "{% for m in messages %}{{ m.role | upper }}: {{ m.content or '' }}"
    + _CALLS
    + "\n\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
COUNTS_TOOLS = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'tool' %}{% set ns.n = ns.n + 1 %}result {{ ns.n }}: {% endif %}"
    "{{ m.content or '' }}" + _CALLS + "<|im_end|>\n{% endfor %}" + _PROMPT
)
NAMES_CALLS = (
    "{% set ns = namespace(name='') %}{% for m in messages %}"
    "{% if m.tool_calls %}{% set ns.name = m.tool_calls[-1].function.name %}{% endif %}"
    "<|im_start|>{% if m.role == 'tool' %}{{ ns.name }}{% else %}{{ m.role }}{% endif %}\n"
    "{{ m.content or '' }}" + _CALLS + "<|im_end|>\n{% endfor %}" + _PROMPT
)
TOOLS_MOVE = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if tools and loop.index0 == ns.last %}<|im_start|>tools\n"
    "{{ tools | tojson }}<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    + _CALLS
    + "<|im_end|>\n{% endfor %}"
    + _PROMPT
)
ALWAYS_PROMPTS = APPEND_ONLY.replace("{% if add_generation_prompt %}", "{% if true %}")
LONG_ENDING = (
    "{% for m in messages %}<|start|>{{ m.role }}<|text|>{{ m.content or '' }}<|end_text|>"
    + _CALLS
    + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|text|>{% endif %}"
)
TEXT_ENDING = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content or '' }}"
    + _CALLS
    + "{{ '\n(over)' }}<|im_end|>\n{% endfor %}"
    + "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
FORGETS_THINKING = (
    "[gMASK]<sop>{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}"
    "\n<tool_response>{{ m.content }}</tool_response>{% elif m.role == 'assistant' %}"
    "{% set text = m.content or '' %}{% set why = m.reasoning_content or '' %}"
    "{% if '</think>' in text %}{% set why = text.split('</think>')[0].split('<think>')[-1] %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|assistant|>\n<think>{{ why.strip() if loop.index0 > ns.last else '' }}</think>\n{{ text }}"
    + _CALLS
    + "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    "{# <|user|> <|assistant|> <|system|> #}"
)
THINKS_BEFORE_CALLS = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}{{ '\n' }}"
    "{% if m.tool_calls and m.reasoning_content and loop.index0 > ns.last %}"
    "<think>\n{{ m.reasoning_content }}{{ '\n' }}</think>{{ '\n' }}{% endif %}{{ m.content or '' }}"
    + _CALLS
    + "<|im_end|>\n{% endfor %}"
    + _PROMPT
)
LOOKS_UP_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.role == 'tool' %} of "
    "{% for a in messages %}{% for c in a.tool_calls or [] %}{% if c.id == m.tool_call_id %}"
    "{{ c.function.name }}{% endif %}{% endfor %}{% endfor %}{% endif %}{{ '\n' }}"
    "{{ m.content or '' }}" + _CALLS + "<|im_end|>\n{% endfor %}" + _PROMPT
)
STRICT = (
    "{% for m in messages %}{% if m.role in ('system', 'tool') %}{{ raise_exception('No.') }}"
    "{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}" + _PROMPT
)
DATED = "<|im_start|>system\nToday is {{ strftime_now('%d %b %Y') }}.<|im_end|>\n" + APPEND_ONLY

MINIATURES = {
    "append-only": Miniature(APPEND_ONLY, "terminator"),
    "no separator": Miniature(NO_SEPARATOR, "terminator"),
    "grouped tools": Miniature(GROUPED_TOOLS, "terminator"),
    "json tools": Miniature(JSON_TOOLS, "terminator"),
    "drops thinking": Miniature(DROPS_THINKING, "terminator"),
    "opens thinking": Miniature(OPENS_THINKING, "terminator"),
    "prompt taken back": Miniature(PROMPT_TAKEN_BACK, "terminator"),
    "keeps thinking": Miniature(KEEPS_THINKING, "terminator"),
    "header stops": Miniature(HEADER_STOPS, "header", bos="[gMASK]", eos="<|endoftext|>"),
    "deferred stop": Miniature(DEFERRED_STOP, "deferred", eos="<|close|>"),
    "other last stop": Miniature(OTHER_LAST_STOP, "terminator", eos="<|return|>"),
    "text only": Miniature(TEXT_ONLY, "none", eos="<|endoftext|>"),
    "counts tools": Miniature(COUNTS_TOOLS, "terminator"),
    "names calls": Miniature(NAMES_CALLS, "terminator"),
    "tools move": Miniature(TOOLS_MOVE, "terminator"),
    "always prompts": Miniature(ALWAYS_PROMPTS, "terminator"),
    "long ending": Miniature(LONG_ENDING, "terminator"),
    "text ending": Miniature(TEXT_ENDING, "terminator"),
    "forgets thinking": Miniature(FORGETS_THINKING, "header", bos="[gMASK]", eos="<|endoftext|>"),
    "thinks before calls": Miniature(THINKS_BEFORE_CALLS, "terminator"),
    "looks up calls": Miniature(LOOKS_UP_CALLS, "terminator"),
    "strict": Miniature(STRICT, "terminator"),
    "dated": Miniature(DATED, "terminator"),
}


def load(name: str, kind: str = "bytes") -> ChatTokenizer:
    """The tokenizer of a miniature, over the byte-level or the SentencePiece-like vocabulary."""
    miniature = MINIATURES[name]
    return ChatTokenizer(miniature.template, bos=miniature.bos, eos=miniature.eos, kind=kind)
