"""A stand-in tokenizer for a chat template that comes without its model's vocabulary."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

# What looks like a special token in the templates of public models.
_SPECIAL = re.compile(
    r"<[|｜][^|｜<>\n]{1,40}[|｜]>|\[/?[A-Z_]{3,20}\]|\[gMASK\]|</?s>|<sop>|<(?:start|end)_of_turn>"
    r"|</?(?:think|tool_call|tool_response|arg_key|arg_value)>|<bos>|<eos>|\]~b\]|\[e~\[|\]~!b\["
)
_WORD = re.compile(r"\s*\w+|\s+|[^\w\s]")


class TemplateTokenizer:
    """Words and special tokens get ids as they are first seen."""

    def __init__(self, template: str) -> None:
        self.chat_template = template
        self.bos_token = "<bos>"
        texts = dict.fromkeys([self.bos_token, "<eos>", *_SPECIAL.findall(template)])
        self._texts = list(texts)
        self._ids = {text: number for number, text in enumerate(self._texts)}
        self.added_tokens_decoder = dict(enumerate(texts))
        by_length = sorted(texts, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, by_length)) + ")")
        self._special = frozenset(texts)
        # The end of a turn is not written into a template as such; the common ones are known.
        ends = ("<|im_end|>", "<|eot_id|>", "<|eot|>", "</s>", "<|end|>", "[e~[", "<end_of_turn>")
        self.eos_token = next((end for end in ends if end in texts), "<eos>")
        self.eos_token_id = self._ids[self.eos_token]
        self._compiled = _compile(template)

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **kwargs: Any,
    ) -> Any:
        text = self._compiled.render(
            messages=conversation,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            bos_token=self.bos_token,
            eos_token=self.eos_token,
            **kwargs,
        )
        return self.encode(text) if tokenize else text

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids = []
        for part in self._split.split(text):
            for word in [part] if part in self._special else _WORD.findall(part):
                if word not in self._ids:
                    self._ids[word] = len(self._texts)
                    self._texts.append(word)
                ids.append(self._ids[word])
        return ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        words = [self._texts[token] for token in token_ids]
        return "".join(w for w in words if not (skip_special_tokens and w in self._special))


def _compile(template: str) -> Any:
    import json

    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import SandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what a trainer would mask; it renders as it is."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, **rest: (
        json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)
