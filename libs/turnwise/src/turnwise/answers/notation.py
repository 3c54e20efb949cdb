"""Answers as models write them, in the LaTeX that math-verify reads. Pure text, no arithmetic.

| written                                              | read as                               |
|------------------------------------------------------|---------------------------------------|
| `25<|im_end|>`, `**25**`, `$25$`, `\\(25\\)`, `25.`  | `25`                                  |
| `\\text{The answer is } 25`, `\\textbf{25}`          | `25`                                  |
| `\\begin{aligned} x &= 20 + 5 \\\\ &= 25 \\end{...}` | `x = 20 + 5 = 25`                     |
| `1\\,234`, `1{,}234`, `1 234`                        | `1234`                                |
| `½`, `√12`, `−2`, `x²`, `π`, `≤`, `６０`             | `\\frac{1}{2}`, `\\sqrt{12}`, `-2`... |
| `pi/2`, `sqrt(2)`, `2*x`, `2**-1`, `2^10`            | `\\pi/2`, `\\sqrt{2}`, `2\\cdot x`... |
| `3e8`, `3x10^8`                                      | `3\\times 10^{8}`                     |
| `0.\\overline{3}`, `0.(3)`, `0.1666...`              | `\\frac{3}{9}`...                     |
| `\\varnothing`, `\\{\\}`, `∅`                        | `\\emptyset`                          |
| `\\sin 30^\\circ`                                    | `\\sin {(30\\cdot\\frac{\\pi}{180})}` |
| `52_8`                                               | 52 times a symbol of base 8           |

A run of digits under a root without braces is one number: nobody writes `\\sqrt12` for `2`.
"""

from __future__ import annotations

import re
import unicodedata

STOP_TOKEN = re.compile(
    r"<[|\uff5c][^\s<>]{1,64}[|\uff5c]>|</s>|<eos>|<end_of_turn>|<pad>|\[EOS\]|\[/?INST\]",
    re.IGNORECASE,
)
"""The text of a special token that ends or begins a turn."""
TEXT = (
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|boldsymbol|bm)"
)
"""A command that sets its argument in another font; to be followed by the braces."""

_WRAPPED = re.compile(r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\*\*(.*)\*\*", re.DOTALL)
_PHRASE = (
    r"(?:so |thus |hence |therefore,? )?(?:(?:the |our |my )?(?:(?:final|correct|right) )?"
    r"(?:answer|result|solution|value)(?: (?:is|equals)(?: equal to)?\b:?|\s*[:=])|ans\s*[:=])"
)
_LEADING_PHRASE = re.compile(
    rf"\s*(?:{TEXT}\s*\{{\s*{_PHRASE}\s*\}}|\*\*\s*{_PHRASE}\s*\*\*|{_PHRASE})[\s~:]*",
    re.IGNORECASE,
)
_ENVIRONMENT = re.compile(
    r"\\begin\s*\{((?:align(?:ed|at)?|gather(?:ed)?|equation|split|multline|displaymath|math)\*?)\}"
    r"(.*)\\end\s*\{\1\}",
    re.DOTALL,
)
_ONE_CELL = re.compile(
    r"\\begin\s*\{array\}\s*\{[clr|\s]*\}([^&]*?)(?:\\\\)?\s*\\end\s*\{array\}", re.DOTALL
)
_LEADING_SIGN = re.compile(r"(?:\\(?:therefore|approx|implies|Rightarrow|to)(?![A-Za-z])|=)\s*")
_COLOURED = re.compile(
    r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}\s*\{([^{}]*)\}|\\underline\s*\{([^{}]*)\}"
)
_COLOUR = re.compile(r"\\color\s*\{[^{}]*\}")
_ROMAN = re.compile(r"\\(?:mathrm|text|textrm|rm)\s*\{\s*([ei])\s*\}(?=\s*\^)")
_SMALL_O = re.compile(rf"(?<=\d)\s*\^\s*(?:o(?![A-Za-z])|\{{\s*(?:{TEXT}\s*\{{\s*o\s*\}}|o)\s*\}})")
_BARRED = re.compile("(?:\\d[\u0304\u0305])+")
_BASE_WORDS = dict(
    two="2", three="3", four="4", five="5", six="6", seven="7", eight="8", nine="9", ten="10",
    twelve="12", sixteen="16",
)  # fmt: skip
_BASE_NAME = rf"({'|'.join(_BASE_WORDS)}|\d+)"
_NAMED_BASE = re.compile(
    rf"(?<=[\dA-F}}])\s*"
    rf"(?:_\s*\{{\s*(?:{TEXT}\s*\{{)?\s*(?:base\s*)?{_BASE_NAME}\s*\}}?\s*\}}"
    rf"|(?:{TEXT}\s*\{{)?\s*\(?base[\s_-]*\}}?\s*{_BASE_NAME}\s*\}}?\)?)(?![A-Za-z\d])"
)
_NUMBER_IN_TEXT = re.compile(rf"{TEXT}\s*\{{\s*([^{{}}A-Za-z]*\d[^{{}}A-Za-z]*)\}}")
_STYLE = re.compile(
    r"\\(?:displaystyle|textstyle|scriptstyle|limits|(?:left|right|[bB]igg?[lr]?)(?=[\s()\[\]|.\\]))"
    r"(?![A-Za-z])\.?"
)
_SPACE_COMMAND = re.compile(
    r"(?<!\\)\\(?:[,;:!> ]|q?quad\b|enspace\b|thinspace\b|[hv]space\*?\s*\{[^{}]*\})|~"
    r"|(?<=\d)\{([,:])\}(?=\d)"
)
_THOUSANDS = re.compile(
    r"(?<![\d.,\\])(?<!\d[ ~])(\d{1,3})"
    r"((?:(?:(?:\\[,;: !]|[ ~'])+|(?:\\!)?,\\!|\\!,|\{\\?,\})\d{3})+)(?!\d)"
)
_SYMBOLS = {
    "\u2212": "-", "\u2013": "-", "\u2014": "-", "\u2010": "-", "\u2011": "-", "\u00d7": "\\times ",
    "\u22c5": "\\cdot ", "\u00b7": "\\cdot ", "\u2219": "\\cdot ", "\u2217": "*", "\u00f7": "/",
    "\u2215": "/", "\u2044": "/", "\u2264": "\\le ", "\u2265": "\\ge ", "\u2a7d": "\\le ",
    "\u2a7e": "\\ge ", "\u2260": "\\neq ", "\u2248": "\\approx ", "\u2261": "\\equiv ",
    "\u00b1": "\\pm ", "\u2213": "\\mp ", "\u221e": "\\infty ", "\u2208": "\\in ",
    "\u2209": "\\notin ", "\u222a": "\\cup ", "\u2229": "\\cap ", "\u2216": "\\setminus ",
    "\u2205": "\\emptyset ", "\u00b0": "^{\\circ}", "\u00ba": "^{\\circ}", "\u2102": "\\mathbb{C}",
    "\u211d": "\\mathbb{R}", "\u2115": "\\mathbb{N}", "\u2124": "\\mathbb{Z}",
    "\u211a": "\\mathbb{Q}", "\u230a": "\\lfloor ", "\u230b": "\\rfloor ", "\u2308": "\\lceil ",
    "\u2309": "\\rceil ", "\u03c0": "\\pi ", "\u03b1": "\\alpha ", "\u03b2": "\\beta ",
    "\u03b3": "\\gamma ", "\u03b4": "\\delta ", "\u03b8": "\\theta ", "\u03bb": "\\lambda ",
    "\u03bc": "\\mu ", "\u03c1": "\\rho ", "\u03c3": "\\sigma ", "\u03c6": "\\phi ",
    "\u03d5": "\\phi ", "\u03c9": "\\omega ", "\u2032": "'", "\u2019": "'", "\u2026": "...",
    "\u22ef": "...", "\u2223": "|", "\u27e8": "\\langle ", "\u27e9": "\\rangle ",
}  # fmt: skip
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
_RAISED = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_LOWERED = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_ROOT = re.compile(r"([\u221a\u221b\u221c])\s*(?=(\()|(\{)|(\d+(?:\.\d+)?|[A-Za-z]|\\[A-Za-z]+)?)")
_ROOT_ORDER = {"\u221a": "", "\u221b": "[3]", "\u221c": "[4]"}

_FUNCTION = re.compile(
    r"(?<![A-Za-z\\])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp)"
    r"(?=\s*[({\d\\^_]|\s+[A-Za-z]\b)"
)
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])", re.IGNORECASE)
_INFINITY = re.compile(r"(?<![A-Za-z\\])(?:infinity|infty|inf|oo)(?![A-Za-z])", re.IGNORECASE)
_PLAIN_ROOT = re.compile(r"\\?(?<![A-Za-z])(sqrt|cbrt)(?![A-Za-z])\s*")
_BARE_ROOT = re.compile(
    r"\\sqrt\s*(\[[^\]{}]*\])?\s*(\d+(?:\.\d+)?|[A-Za-z]|\\(?:pi|alpha|beta|theta)\b)"
)
_SCIENTIFIC = re.compile(r"(?<![\w.\\])((?:\d+\.?\d*|\.\d+))[eE]([+-]?)(\d{1,4})(?![\w.])")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX*]\s*(?=10\s*\^)")
_POWER = re.compile(r"\^\s*(?=\()|\^\s*([+-]?\d+|[+-][A-Za-z])")
_COMMAND_BEFORE = {
    "^": re.compile(r"\^\s*\Z"),
    "\\sqrt": re.compile(r"\\sqrt\s*(?:\[[^\[\]]*\])?\s*\Z"),
}
_LONGEST = 20
_STARS = re.compile(r"\s*\*\s*")
_UNEQUAL = re.compile(r"(?<!\d)!=|(?<=\s)!=|<>|/=")
_MIXED = re.compile(r"(?<![\d.^_/])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])")
_REPEATING = re.compile(
    r"(?<![\d.])(\d{0,40})\.(\d{0,40})"
    r"(?:\\(?:overline|bar|widebar|overbar)\s*(?:\{(\d+)\}|(\d))|\((\d+)\)"
    r"|((?:\\dot\s*(?:\{\d\}|\d)\d*){1,2}))(?:\s*(?:\.{3}|\\[lc]?dots))?"
)
_ELLIPSIS = re.compile(r"(?<![\d.])(\d{0,40})\.(\d{1,60})\s*(?:\.{3,}|\\[lc]?dots)(?!\s*[\d,])")
_BLOCK = re.compile(r"^(\d*?)(?:(\d)\2\2+|(\d{2,12}?)\3+)$")
_EMPTY = re.compile(r"\\varnothing(?![A-Za-z])|^\s*\\\{\s*\\\}\s*$")
_INNER_DEGREES = re.compile(
    r"((?<![\d.])\d+(?:\.\d+)?|\\?[A-Za-z]+)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))"
)
_BASE = re.compile(
    r"(?<![A-Za-z\d.])(?:\((\d+)\)|(\d+))\s*_\s*(?:\{\s*\(?(\d{1,2})\)?\s*\}|(\d))(?!\d)"
)


def bare(text: str) -> str:
    """Without stop tokens, math delimiters, bold marks, a full stop and space around it."""
    found = _trimmed(" ".join(STOP_TOKEN.sub(" ", text).split()))
    while wrapped := _WRAPPED.fullmatch(found):
        found = _trimmed(next(part for part in wrapped.groups() if part is not None).strip())
    return found


def _trimmed(text: str) -> str:
    """Without a full stop, half a command and space at its end; an ellipsis stays."""
    while True:
        text = text.strip()
        for tail in (".", ",", ";", "\\"):
            if text.endswith(tail) and not text.endswith(2 * tail):
                text = text[:-1]
                break
        else:
            return text


def without_phrase(text: str) -> str:
    """Without `The answer is` before it, in words or in `\\text{}`."""
    phrase = _LEADING_PHRASE.match(text)
    return text[phrase.end() :] if phrase else text


def plain(text: str) -> str:
    """What `text` says in ASCII, on one line and without dress; letters and marks as they were.

    The first half of `to_latex`: what other forms than formulas are looked for in.
    """
    found = _ONE_CELL.sub(r"\1", _from_unicode(bare(text)))
    if environment := _ENVIRONMENT.fullmatch(found):
        found = _one_line(environment[2])
    found = bare(without_phrase(bare(found)))
    found = _COLOUR.sub("", _COLOURED.sub(lambda m: m[1] or m[2] or "", found))
    found = _NUMBER_IN_TEXT.sub(r"\1", _STYLE.sub("", found))
    found = _NAMED_BASE.sub(_base, _SMALL_O.sub(r"^{\\circ}", _ROMAN.sub(r"\1", found)))
    found = _THOUSANDS.sub(lambda m: re.sub(r"\D", "", m[0]), found)
    found = _SPACE_COMMAND.sub(lambda m: m[1] or " ", found)
    found = bare(found)
    return found[sign.end() :] if (sign := _LEADING_SIGN.match(found)) else found


def to_latex(text: str) -> str:
    """`text`, as `plain` returned it, as a formula for math-verify. See the module."""
    found = _UNEQUAL.sub(r"\\neq ", text).replace("<=", "\\le ").replace(">=", "\\ge ")
    found = _REPEATING.sub(_repeating, found)
    found = _ELLIPSIS.sub(_ellipsis, found)
    found = _TIMES_TEN.sub(r"\\times ", found)
    found = _SCIENTIFIC.sub(_scientific, found)
    found = found.replace("**", "^")
    found = _POWER.sub(lambda m: "^" if m[1] is None else f"^{{{m[1]}}}", found)
    found = _grouped(found, "^")
    found = _FUNCTION.sub(r"\\\1", _plain_roots(found))
    found = _PI.sub(r"\\pi ", _INFINITY.sub(r"\\infty ", found))
    found = _BARE_ROOT.sub(lambda m: f"\\sqrt{m[1] or ''}{{{m[2]}}}", found)
    found = _MIXED.sub(r"\1\\frac{\2}{\3}", found)
    found = _STARS.sub(r"\\cdot ", found)
    found = _EMPTY.sub(r"\\emptyset ", found)
    found = _INNER_DEGREES.sub(r"{(\1\\cdot\\frac{\\pi}{180})}", found)
    found = _BASE.sub(_of_base, found)
    return found.strip()


def _base(found: re.Match[str]) -> str:
    named = found[1] or found[2]
    return f"_{{{_BASE_WORDS.get(named, named)}}}"


def _of_base(found: re.Match[str]) -> str:
    digits, base = found[1] or found[2], int(found[3] or found[4])
    return digits if base == 10 else f"{int(digits)}\\cdot \\Xi_{{{base}}}"


def _from_unicode(text: str) -> str:
    text = _BARRED.sub(lambda m: f"\\overline{{{m[0][::2]}}}", text)
    text = _RAISED.sub(lambda m: f"^{{{''.join(_SUPERSCRIPTS[c] for c in m[0])}}}", text)
    text = _LOWERED.sub(lambda m: f"_{{{''.join(_SUBSCRIPTS[c] for c in m[0])}}}", text)
    text = _roots(text)
    text = "".join(_character(char) for char in text)
    return " ".join(text.split())


def _character(char: str) -> str:
    if char in _SYMBOLS:
        return _SYMBOLS[char]
    if char.isascii():
        return char
    if unicodedata.category(char) == "Cf":
        return ""
    normal = unicodedata.normalize("NFKC", char)
    over, slash, under = normal.partition("\u2044")
    if slash and over.isdigit() and under.isdigit():
        return f"\\frac{{{over}}}{{{under}}}"
    return "".join(_SYMBOLS.get(part, part) for part in normal)


def _roots(text: str) -> str:
    def latex(found: re.Match[str]) -> str:
        return f"\\sqrt{_ROOT_ORDER[found[1]]}"

    text = _ROOT.sub(latex, text)
    return _grouped(text, "\\sqrt")


def _plain_roots(text: str) -> str:
    text = _PLAIN_ROOT.sub(lambda m: "\\sqrt" + ("[3]" if m[1] == "cbrt" else ""), text)
    return _grouped(text, "\\sqrt")


def _grouped(text: str, command: str) -> str:
    """Braces for the parentheses right behind `command`, or behind its `[n]`."""
    opened: list[int] = []
    braces: dict[int, str] = {}
    for at, char in enumerate(text):
        if char == "(":
            opened.append(at)
        elif char == ")" and opened:
            start = opened.pop()
            if _COMMAND_BEFORE[command].search(text, max(0, start - _LONGEST), start):
                braces |= {start: "{", at: "}"}
    return "".join(braces.get(at, char) for at, char in enumerate(text)) if braces else text


def _one_line(inside: str) -> str:
    """The lines of an environment: a chain where each goes on with `=`, else a list."""
    parts = re.split(r"\\\\(?:\[[^\]]*\])?", inside)
    lines = [line for part in parts if (line := " ".join(part.replace("&", " ").split()))]
    joined = ""
    for line in lines:
        chained = line.startswith(("=", "\\iff", "\\Rightarrow")) or not joined
        joined += f" {line}" if chained else f", {line}"
    return joined.strip()


def _scientific(found: re.Match[str]) -> str:
    sign = "-" if found[2] == "-" else ""
    return f"{found[1]}\\times 10^{{{sign}{int(found[3])}}}"


def _repeating(found: re.Match[str]) -> str:
    whole, first = found[1], found[2]
    block = found[3] or found[4] or found[5]
    if block is None:
        block = "".join(char for char in found[6] if char.isdigit())
    return _fraction(whole, first, block)


def _ellipsis(found: re.Match[str]) -> str:
    block = _BLOCK.match(found[2])
    if block is None:
        return found[0]
    return _fraction(found[1], block[1], block[2] or block[3])


def _fraction(whole: str, first: str, block: str) -> str:
    """The exact value of `whole.first` with `block` repeated for good."""
    over = int(whole + first + block or "0") - int(whole + first or "0")
    return f"\\frac{{{over}}}{{{10 ** len(first) * (10 ** len(block) - 1)}}}"
