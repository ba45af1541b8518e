"""How models' own token counts compare with ours: learnt from what providers return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated

import msgspec

from perdure.core.errors import InvalidKey
from perdure.core.messages import Message, Reasoning, references
from perdure.core.tokens import Calibration, Counter, count_message, observe
from perdure.storage.records import Key, system_record
from perdure.storage.store import Store


@system_record("calibrations")
class CalibrationRecord(msgspec.Struct, frozen=True):
    """How a model's own token counts compare with ours."""

    id: Annotated[str, Key()]  # the model
    calibration: Calibration


class Calibrations:
    """What is known about the tokens of each model."""

    def __init__(self, store: Store, counter: Callable[[], Counter]) -> None:
        self._store = store
        self._counter = counter

    async def of(self, model: str) -> Calibration:
        found = await self._store.collection(CalibrationRecord).get(model)
        return self._fresh() if found is None else found.calibration

    def _fresh(self) -> Calibration:
        return Calibration(counter=self._counter().name)

    async def learn(self, messages: Iterable[Message]) -> None:
        """Compare replies that a provider counted."""
        samples: dict[str, list[tuple[int, int]]] = {}
        for message in messages:
            theirs = message.usage.output if message.usage is not None else None
            if theirs and message.model and not _hides(message):
                ours = count_message(self._counter(), message)
                samples.setdefault(message.model, []).append((ours, theirs))
        records = self._store.collection(CalibrationRecord)
        for model, pairs in samples.items():

            def learnt(
                found: CalibrationRecord | None,
                model: str = model,
                pairs: list[tuple[int, int]] = pairs,
            ) -> CalibrationRecord:
                known = found.calibration if found is not None else self._fresh()
                for ours, theirs in pairs:
                    known = observe(known, ours, theirs)
                return CalibrationRecord(model, known)

            with suppress(InvalidKey):  # a model's name can be anything
                await records.change(model, learnt)


def _hides(message: Message) -> bool:
    """Whether the provider counted something that is not shown, or not here."""
    hidden = (message.usage.reasoning or 0) if message.usage is not None else 0
    if hidden or message.partial or any(references((message,))):
        return True
    return any(isinstance(part, Reasoning) for part in message.parts)
