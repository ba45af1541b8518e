"""A turn of many tool calls in a small window."""

from __future__ import annotations

import json

import perdure
from perdure.core.messages import Message, Text, ToolCall, ToolResult, user

BUDGET = 6_000
ROUNDS = 60


def work(number: int) -> list[Message]:
    """One file is written, with a name that nothing else has, and a long log comes back."""
    text = "\n".join(
        [f"def handle_case_{number}(event_{number}):", "    return None", *["    # so on"] * 30]
    )
    call = ToolCall(
        id=f"c{number}",
        name="write",
        arguments=json.dumps({"path": f"lib/case_{number}.py", "text": text}),
    )
    came = "\n".join(f"line {line} of the log says that all is well" for line in range(20))
    return [
        Message("assistant", (call,)),
        Message("tool", (ToolResult(call=call.id, content=(Text(came),)),)),
    ]


async def test_rounds_at_c_say_what_the_model_wrote_and_are_rebuilt() -> None:
    async with perdure.open("memory://") as bank:
        session = await bank.session("coder/cases", budget=BUDGET)
        await session.append([user("Write all the cases.")])
        sent = dict[int, list[str]]()
        for number in range(1, ROUNDS + 1):
            context = await session.context()
            assert context.tokens <= BUDGET
            sent[number] = [block.text for block in context.shown.blocks]
            await session.append(work(number))
        context = await session.context()
        compact = [block for block in context.shown.blocks if block.element.level == "C"]
        runs = [block for block in compact if block.element.generation == 1]
        assert runs
        for block in runs:
            for number in range(block.element.first.round, block.element.last.round + 1):
                assert f"def handle_case_{number}(event_{number}):" in block.text
        other = await bank.session(session.name)
        for number in (20, 40, ROUNDS):
            past = await other.past_context(f"T-1.{number}")
            assert [block.text for block in past.shown.blocks] == sent[number]
