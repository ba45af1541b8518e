"""No project's words reach another's prompt, with recall on and beyond the budget."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.testing.model import ReceivedRequest, ScriptedAnswer, ScriptedModel
from tests.proxy.proxy_setup import proxied
from tests.proxy.test_recording import settled

#: What each project talks about: the same, but for a word of its own.
_PROJECTS = {"/w/alpha": "ALPHAWORD", "/w/beta": "BETAWORD", "": "GAMMAWORD", " ": "DELTAWORD"}
_TOPICS = ("the login bug", "the release build", "the payment retry", "the cache size")
_WORDS = " ".join(f"detail{n}" for n in range(60))


class _Talk:
    """A conversation in a project; one without a folder is known by its id alone."""

    def __init__(self, folder: str, number: int) -> None:
        self.folder, self.word = folder.strip(), _PROJECTS[folder]
        self.name = f"{self.word}-{number}".lower()
        self.messages: list[dict[str, Any]] = []

    def body(self, topic: str) -> dict[str, Any]:
        text = f"What do we know about {topic}? {self.word} {_WORDS}"
        self.messages.append({"role": "user", "content": text})
        system = f"# Environment\nWorking directory: {self.folder}\n" if self.folder else "Hi."
        tools = [{"name": "Bash", "input_schema": {"type": "object"}}]
        return {
            "model": "m",
            "max_tokens": 9,
            "system": system,
            "messages": self.messages,
            "tools": tools,
        }


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(_PROJECTS)), st.integers(0, 1), st.sampled_from(_TOPICS)),
        min_size=8,
        max_size=16,
    )
)
def test_no_words_of_a_project_reach_another(asked: list[tuple[str, int, str]]) -> None:
    def reply(request: ReceivedRequest) -> ScriptedAnswer:
        word = next(word for word in _PROJECTS.values() if word in request.prompt)
        return ScriptedAnswer(f"About that, {word} is what we know. {_WORDS}")

    async def run() -> None:
        async with (
            ScriptedModel(reply) as model,
            proxied(model.url, recall=True, budget=1_500) as running,
        ):
            talks: dict[tuple[str, int], _Talk] = {}
            for folder, number, topic in asked:
                talk = talks.setdefault((folder, number), _Talk(folder, number))
                body = talk.body(topic)
                headers = {"x-claude-code-session-id": talk.name}
                answer = await running.client.post(
                    "/v1/messages", json=body, headers=headers, timeout=60
                )
                talk.messages.append({"role": "assistant", "content": answer.json()["content"]})
                await settled(running)
                sent = str(model.requests[-1].body)
                found = {word for word in _PROJECTS.values() if word in sent}
                assert found == {talk.word}, f"{talk.word} was sent with {found}"
            assert running.proxy.report.figures.failures == 0

    asyncio.run(run())


async def test_recall_reaches_the_own_project_alone() -> None:
    async with ScriptedModel("Fine.") as model, proxied(model.url, recall=True) as running:
        fact = "The payment retry backoff is 47 seconds."

        async def say(folder: str, name: str, text: str) -> str:
            talk = _Talk(folder, 0)
            body = {**talk.body("nothing"), "messages": [{"role": "user", "content": text}]}
            headers = {"x-claude-code-session-id": name}
            await running.client.post("/v1/messages", json=body, headers=headers, timeout=60)
            await settled(running)
            return str(model.requests[-1].body)

        await say("/w/alpha", "a1", fact)
        assert "47 seconds" in await say("/w/alpha", "a2", "What is the payment retry backoff?")
        assert "47 seconds" not in await say("/w/beta", "b1", "What is the payment retry backoff?")
        assert "47 seconds" not in await say("", "c1", "What is the payment retry backoff?")
