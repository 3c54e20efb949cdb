"""What a telecom agent asks its customer to do with the phone: from words to steps. Pure.

The agent's text is taken apart into clauses. A clause counts if it asks for something, and not if
the agent reports its own acts ("I have enabled roaming"). A switch is asked for by the state that
it shall have, whichever it has ("make sure that airplane mode is off"), or by the tool's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Switch:
    """Something that is on or off.

    Attributes:
        title: For people.
        noun: What the agent calls it.
        reads: The tool that shows its state.
        on: Found in that tool's result if it is on.
        turn_on, turn_off: The tools that change it.
    """

    title: str
    noun: re.Pattern[str]
    reads: str
    on: str
    turn_on: str
    turn_off: str


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do: a call, or a switch to be brought into a state.

    Attributes:
        tool: The tool; "" for a switch.
        arguments: Its arguments.
        switch, wanted: The switch and its state.
    """

    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    switch: Switch | None = None
    wanted: bool = False


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _toggle(title: str, noun: str, reads: str, on: str, tool: str) -> Switch:
    return Switch(title, _words(noun), reads, on, tool, tool)


SWITCHES = (
    _toggle(
        "Airplane mode",
        r"\b(?:air|aero)plane[ _-]mode|\bflight mode",
        "check_network_status",
        "Airplane Mode: ON",
        "toggle_airplane_mode",
    ),
    _toggle(
        "Data saver",
        r"\bdata[ _-]sav(?:er|ing)",
        "check_data_restriction_status",
        "mode is ON",
        "toggle_data_saver_mode",
    ),
    _toggle(
        "Data roaming",
        r"\broaming\b|toggle_roaming",
        "check_network_status",
        "Data Roaming Enabled: Yes",
        "toggle_roaming",
    ),
    _toggle(
        "Mobile data",
        r"\b(?:mobile|cellular) data\b(?! sav| plan| usage| connection)|toggle_data\b",
        "check_network_status",
        "Mobile Data Enabled: Yes",
        "toggle_data",
    ),
    _toggle(
        "Wi-Fi calling",
        r"\bwi-?fi[ _-]calling",
        "check_wifi_calling_status",
        "turned ON",
        "toggle_wifi_calling",
    ),
    _toggle(
        "Wi-Fi",
        r"\bwi-?fi\b(?![ _-]calling)|toggle_wifi\b",
        "check_wifi_status",
        "Wi-Fi is ON",
        "toggle_wifi",
    ),
    Switch(
        "The VPN",
        _words(r"\bvpn\b"),
        "check_vpn_status",
        "ON and connected",
        "connect_vpn",
        "disconnect_vpn",
    ),
)
_CLAUSE = _words(r"[^.?!;:\n]+(?:[.:](?=\w)[^.?!;:\n]+)*[?!]?")
_VERBS = (
    "check|look|open|run|do|go|tell|turn|switch|toggle|set|put|enable|disable|activate|deactivate|"
    "connect|disconnect|reset|reseat|re-seat|remove|insert|reinsert|take|restart|reboot|grant|allow|"
    "give|pay|make|send|try|use|perform|change|select|choose|confirm|see|verify"
)
_REQUEST = _words(
    r"\?|\b(?:please|kindly|you(?:'ll| will)? (?:need|have) to|you (?:should|must|can|could)|"
    r"(?:could|can|would|will) you|want you to|like you to|need you to|ask you to|let's|make sure|"
    r"ensure|go ahead|try|next|first|then|now)\b|"
    r"^\W*(?:\d+\W+)?(?:step \d+\W+)?(?:and |also |so |okay |ok |great |thanks |thank you )?"
    rf"(?:{_VERBS})\b"
)
# A yes is asked for, and nothing to be done yet.
_PROPOSAL = _words(
    r"\bdo you (?:agree|want|accept|consent|wish)\b|\bare you (?:willing|ok|okay|fine|happy)\b|"
    r"\bwould you (?:like|be willing)\b|\b(?:shall|should|may) I\b"
)
_NEXT_ACT = _words(rf",? (?:and|then|after that),? (?:then |also )?(?=(?:{_VERBS})\b)")
_OWN_ACT = _words(
    r"\b(?:I|we)(?:'ve|'ll|'m|'d| have| had| will| am| can| could| shall| just| already| now)*"
    r" (?!(?:need|want|would|'d|ask|recommend|suggest)\b)(?!.*\byou\b)"
)
_ON = _words(
    r"\b(?:turn|switch|toggl|put|set)\w*\b[^,]{0,40}?\bon\b|\b(?:re-?)?enabl\w*\b|\bactivat\w*\b|"
    r"\bconnect\b|\b(?:is|are|be|stays?) (?:on|enabled|connected)\b(?=\W*$)"
)
_OFF = _words(
    r"\b(?:turn|switch|toggl|put|set)\w*\b[^,]{0,40}?\boff\b|\bdisabl\w*\b|\bdeactivat\w*\b|"
    r"\bdisconnect\w*\b|\b(?:is|are|be|stays?) (?:off|disabled|disconnected)\b(?=\W*$)"
)
_CONDITION = _words(r"^\W*(?:if|when|once|in case)\b[^,]*,|\bif (?:it|that|this|the)\b.*$")
# The arguments are bounded, so that time stays linear in what an agent says.
_FUNCTION = re.compile(r"\b([a-z]+(?:_[a-z]+)+)\b(?:\(([^)]{0,1000})\))?")
_ARGUMENT = re.compile(r"\b(\w+)\s{0,16}=\s{0,16}[\"']([^\"']*)[\"']")
_MODES = {
    "4g_5g_preferred": r"4g_5g_preferred|\b5g\b|\b4g ?/ ?5g|\blte\b",
    "4g_only": r"4g_only|\b4g only\b|\bonly 4g\b",
    "3g_only": r"3g_only|\b3g only\b|\bonly 3g\b",
    "2g_only": r"2g_only|\b2g only\b|\bonly 2g\b",
}
_PERMISSIONS = ("sms", "storage", "phone", "network")
_ACTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("reboot_device", _words(r"\b(?:reboot|restart)\w*|\bpower[ -]cycle|\boff and (?:back )?on\b")),
    (
        "reseat_sim_card",
        _words(
            r"\bre-?seat|\bre-?insert\w*|\b(?:take|remove|pop)\b.{0,30}\bsim\b|"
            r"\bsim\b.{0,40}\b(?:out|back in)\b"
        ),
    ),
    ("reset_apn_settings", _words(r"\breset\w*\b.{0,30}\bapn\b|\bapn\b.{0,40}\b(?:reset|default)")),
    (
        "check_payment_request",
        _words(r"\b(?:check|see|look|find)\b.{0,60}\bpayment request|payment request\b.{0,40}\?"),
    ),
    (
        "make_payment",
        _words(
            r"\b(?:make|complete|send|submit)\b.{0,30}\bpayment\b(?! request)|\bpay\b|\baccept\b"
        ),
    ),
    ("run_speed_test", _words(r"\bspeed[ -]?test|\bhow fast\b|\btest\b.{0,20}\bspeed\b")),
    (
        "can_send_mms",
        _words(
            r"\b(?:send|sending|try|test)\b.{0,40}\b(?:mms|picture message|photo)|"
            r"\bmms\b.{0,40}\b(?:work|go(?:es)? through|sent)"
        ),
    ),
    ("check_status_bar", _words(r"\bstatus bar\b|\bicons?\b|\bsignal\b")),
    (
        "check_network_mode_preference",
        _words(r"\bnetwork (?:mode|type|preference)|\bpreferred network|\bnetwork_mode"),
    ),
    ("check_network_status", _words(r"\bnetwork status|\bconnection status|\bcellular connection")),
    ("check_sim_status", _words(r"\bsim\b")),
    ("check_apn_settings", _words(r"\bapn\b|\bmmsc\b")),
    ("check_installed_apps", _words(r"\b(?:installed|which|what) apps\b")),
    ("check_app_permissions", _words(r"\bpermissions?\b")),
    (
        "check_app_status",
        _words(r"\bapp(?:'s)? (?:status|details)\b|\bstatus of the .{0,20} app\b"),
    ),
    ("check_data_restriction_status", _words(r"\bdata restriction|\brestrict\w* (?:of )?data")),
)


def _app(clause: str) -> str:
    return "browser" if re.search(r"\bbrowser\b", clause, re.IGNORECASE) else "messaging"


def _mode(clause: str) -> str | None:
    for mode in ("2g_only", "3g_only", "4g_only", "4g_5g_preferred"):
        if re.search(_MODES[mode], clause, re.IGNORECASE):
            return mode
    return None


def _wanted(clause: str) -> bool | None:
    """The state that a clause asks for, None if it asks for none."""
    on, off = _ON.search(clause), _OFF.search(clause)
    if on is None or off is None:
        return None if on is off else on is not None
    return on.start() < off.start()


class Reader:
    """Steps that texts ask for; remembers what the last clause was about."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        """`tools`: OpenAI function schemas of the user's tools, by name."""
        self._tools = tools
        self._topic: Switch | None = None

    def steps(self, text: str) -> list[Step]:
        """What `text` asks for, in its order, each thing once."""
        found: list[Step] = []
        self._topic = None
        for clause in _CLAUSE.findall(text):
            if _PROPOSAL.search(clause):
                continue
            for part in _NEXT_ACT.split(clause):
                asks = _REQUEST.search(clause) or self._named(part)
                if asks and not _OWN_ACT.search(part):
                    found.extend(step for step in self._of(part) if step not in found)
        return found

    def _named(self, clause: str) -> bool:
        return any(name in self._tools for name, _ in _FUNCTION.findall(clause))

    def _of(self, clause: str) -> Iterator[Step]:
        called = [
            (name, dict(_ARGUMENT.findall(arguments)))
            for name, arguments in _FUNCTION.findall(clause)
            if name in self._tools
        ]
        for name, arguments in called:
            yield from self._named_step(name, arguments, clause)
        if called:
            return
        clause = _CONDITION.sub(self._note_topic, clause)
        wanted = _wanted(clause)
        switches = [switch for switch in SWITCHES if switch.noun.search(clause)]
        if switches:
            self._topic = switches[-1]
        elif wanted is not None and self._topic and re.search(r"\bit\b", clause):
            switches = [self._topic]
        if _grants(clause):
            for permission in _PERMISSIONS:
                if re.search(rf"\b{permission}\b", clause, re.IGNORECASE):
                    yield Step(
                        "grant_app_permission",
                        {"app_name": _app(clause), "permission": permission},
                    )
            return
        if switches:
            for switch in switches:
                yield (Step(switch.reads) if wanted is None else Step(switch=switch, wanted=wanted))
            return
        yield from self._plain(clause)

    def _note_topic(self, found: re.Match[str]) -> str:
        for switch in SWITCHES:
            if switch.noun.search(found.group()):
                self._topic = switch
        return " "

    def _named_step(self, name: str, arguments: dict[str, Any], clause: str) -> Iterator[Step]:
        wanted = _wanted(clause)
        for switch in SWITCHES:
            if name in (switch.turn_on, switch.turn_off):
                self._topic = switch
                by_name = switch.turn_on != switch.turn_off or wanted is None
                yield Step(name) if by_name else Step(switch=switch, wanted=bool(wanted))
                return
        needed = self._tools[name]["function"]["parameters"].get("properties", {})
        if "mode" in needed:
            arguments.setdefault("mode", _mode(clause.replace(name, "")) or "4g_5g_preferred")
        if "app_name" in needed:
            arguments.setdefault("app_name", _app(clause))
        if "permission" in needed and "permission" not in arguments:
            for permission in _PERMISSIONS:
                if re.search(rf"\b{permission}\b", clause, re.IGNORECASE):
                    yield Step(name, {**arguments, "permission": permission})
            return
        yield Step(name, {key: value for key, value in arguments.items() if key in needed})

    def _plain(self, clause: str) -> Iterator[Step]:
        for tool, pattern in _ACTS:
            if not pattern.search(clause):
                continue
            if tool == "check_network_mode_preference" and (mode := _mode(clause)):
                changes = re.search(
                    r"\b(?:set|change|switch|select|choose)\b", clause, re.IGNORECASE
                )
                if changes:
                    yield Step("set_network_mode_preference", {"mode": mode})
                    return
            needs_app = tool in ("check_app_permissions", "check_app_status")
            yield Step(tool, {"app_name": _app(clause)} if needs_app else {})
            return


def _grants(clause: str) -> bool:
    grants = re.search(r"\b(?:grant|allow|give|enable|turn on)\b", clause, re.IGNORECASE)
    return grants is not None and re.search(r"\bpermissions?\b|\baccess\b", clause) is not None
