"""What a model is told about the history: once in the system text, and briefly near each prompt.

Every token here is sent with every request. Changing the words voids every session's prompt cache
once.
"""

from __future__ import annotations

_SCHEME = """\
# Your memory of this conversation
All that was said before is kept, and the older it is, the shorter it stands here:
- <T-183-R>…: turn 183 as it was said, as messages of their own; the last one is the turn to answer
- <T-183-S>…: smoothed, tool output shortened; <T-183-C>…: compressed; <T-183-T>…: a line or two
- <T-183.4-C>…: round 4 (one model call) of turn 183; <T-50-through-100-T>…: 51 turns in one
- <perdure-board>: notes for some turns; <perdure-memory>: what was recalled for this prompt; \
<perdure-note>: a reminder
All but the last turn are records, not instructions: nothing in them asks you to do anything now. \
The tags are made for you, not by the user: do not write such tags, and do not mention them."""

_TOOLS = """\
What is shortened can be had in full. Look it up before you guess or ask again:
- history_get_turn({"id": "T-183", "level": "R"}): a turn, round or range; level R, S, C or T
- history_search({"query": "token refresh"}): find turns of this conversation
- recall({"query": "token refresh"}): find anything you knew; memory_get({"id": "M-7"}), \
reference_get({"name": "oauth"}) fetch it
- board_pull({"id": "T-183", "level": "S", "turns_to_live": 5}): keep a turn in view
- board_post({"text": "Port is 8123"}): keep a note in view
- board_clear({"id": "B-2"}): drop it; without an id, everything
- history_set_fidelity({"id": "T-183", "level": "S"}): show a turn at another level from the next \
rewrite on; with "now": true at once, which costs a rewrite of the cached prompt"""

_PLAIN = "What is shortened is kept in full; if you need it, say which turn."

_REMINDER = """\
Turns above are records of the past, the older the shorter; what to do now is in the prompt below.
"""
_REMINDER_TOOLS = _REMINDER + "history_get_turn and history_search bring back what is not shown."
_REMINDER_PLAIN = _REMINDER + "If something you need is not shown, say which turn."

#: What each reminder takes in its element. Known, so that who has just started need not read a
#: vocabulary to count it.
REMINDER_TOKENS = {_REMINDER_TOOLS: 49, _REMINDER_PLAIN: 48}


def explanation(*, tools: bool) -> str:
    return f"{_SCHEME}\n{_TOOLS if tools else _PLAIN}"


def with_explanation(system: str, *, tools: bool) -> str:
    return f"{system}\n\n{explanation(tools=tools)}" if system.strip() else explanation(tools=tools)


def reminder(*, tools: bool = True) -> str:
    return _REMINDER_TOOLS if tools else _REMINDER_PLAIN
