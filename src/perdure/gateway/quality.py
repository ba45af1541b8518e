"""How good an answer looks, from 0 to 1, before anybody has judged it. The worst fault decides:

0.0   nothing was said
0.1   the provider's filter stopped it, or it is no JSON where JSON was asked for
0.2   a tool call cannot be carried out: no such tool, or its arguments are no JSON object
0.3   JSON of another shape; a tool had to be called and none was; the model refused
0.4   cut off by the limit of length
0.5   cut off otherwise
1.0   no fault can be seen
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from perdure.core.messages import Message, Text
from perdure.gateway.calls import ModelAnswer, Request
from perdure.wire.notes import NOTES

EMPTY = 0.0
FILTERED = NO_JSON = 0.1
BROKEN_CALL = 0.2
OTHER_SHAPE = NO_CALL = REFUSED = 0.3
TOO_LONG = 0.4
CUT_OFF = 0.5

#: How models begin to refuse. Looked for at the beginning of short answers only.
_REFUSALS = re.compile(
    r"(?:i['’]?m sorry|sorry|i apologi[sz]e|unfortunately)?[,.;: ]*(?:but )?"
    r"(?:i (?:cannot|can['’]?t|can not|won['’]?t|will not|am unable to|am not able to)"
    r"|i['’]m (?:unable|not able) to|as an ai(?: language)? model)\b",
    re.IGNORECASE,
).match
_REFUSAL_LENGTH = 600
#: Schemas refer to themselves; answers end.
_DEEPEST = 64


def heuristic(answered: ModelAnswer, request: Request) -> float:
    """From 0 to 1: see the module. Never raises."""
    message = answered.message
    text = message.text.strip()
    if not text and not message.calls:
        return FILTERED if answered.finish == "filter" else EMPTY
    faults = [1.0]
    if answered.finish == "filter":
        faults.append(FILTERED)
    elif answered.finish == "length":
        faults.append(TOO_LONG)
    elif answered.finish == "other" or message.partial:
        faults.append(CUT_OFF)
    faults.append(_calls(message, request))
    if not message.calls:
        if request.shape is not None:
            faults.append(_shape(text, request.shape.schema))
        if request.tools and request.tool_choice not in ("auto", "none"):
            faults.append(NO_CALL)
        if is_refusal(message):
            faults.append(REFUSED)
    return min(faults)


def _calls(message: Message, request: Request) -> float:
    own = {tool.name for tool in request.tools}
    for call in message.calls:
        if own and call.name not in own:
            return BROKEN_CALL
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            return BROKEN_CALL
        if not isinstance(arguments, dict):
            return BROKEN_CALL
    return 1.0


def _shape(text: str, schema: Mapping[str, Any]) -> float:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return NO_JSON
    return 1.0 if follows(value, schema) else OTHER_SHAPE


def is_refusal(message: Message) -> bool:
    """Whether a model says that it will not do what it was asked: a guess, by its first words."""
    text = message.text.strip()
    said_so = any(
        "refusal" in own.get(NOTES, {}).values()  # where the wire format has a place for them
        for part in message.parts
        if isinstance(part, Text)
        for own in part.native.values()
    )
    return said_so or (len(text) <= _REFUSAL_LENGTH and _REFUSALS(text) is not None)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool)
        and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
}


def follows(value: Any, schema: Any) -> bool:
    """Whether a value follows a JSON schema, as far as providers enforce it.

    Checks type, enum, const, properties, required, additionalProperties, items, anyOf, oneOf, allOf
    and local references; ignores everything else.
    """
    return _follows(value, schema, schema, _DEEPEST)


def _follows(value: Any, schema: Any, root: Any, depth: int) -> bool:
    if not isinstance(schema, Mapping) or depth == 0:
        return schema is not False
    if isinstance(reference := schema.get("$ref"), str):
        return _follows(value, _referred(reference, root), root, depth - 1)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_KINDS.get(kind, _anything)(value) for kind in kinds):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    for several, enough in (("anyOf", any), ("oneOf", any), ("allOf", all)):
        options = schema.get(several)
        if options and not enough(_follows(value, each, root, depth - 1) for each in options):
            return False
    if isinstance(value, dict):
        return _object_follows(value, schema, root, depth)
    if isinstance(value, list) and "items" in schema:
        return all(_follows(each, schema["items"], root, depth - 1) for each in value)
    return True


def _object_follows(
    value: dict[str, Any], schema: Mapping[str, Any], root: Any, depth: int
) -> bool:
    known = schema.get("properties", {})
    if any(name not in value for name in schema.get("required", ())):
        return False
    others = schema.get("additionalProperties", True)
    return all(
        _follows(each, known.get(name, others), root, depth - 1) for name, each in value.items()
    )


def _referred(reference: str, root: Any) -> Any:
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return True
        found = found[name]
    return found if reference.startswith("#") else True


def _anything(_: Any) -> bool:
    return True
