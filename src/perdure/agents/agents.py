"""The agents of a bank: who there is, what they wait for, and how they are opened."""

from __future__ import annotations

from perdure.agents import questions
from perdure.agents.agent import Agent
from perdure.agents.agent_records import AgentQuestion, AgentRecord, AgentStatus, AgentVersion
from perdure.agents.agent_worker import AgentWorker


class Agents(AgentWorker):
    """The agents of a bank: see `Bank.agents`."""

    async def get(self, name: str) -> Agent:
        """An agent that exists; this process does not work for it. Raises `NotFound`."""
        record = await self.registry.get(name)
        return Agent(self, record, await self.registry.version(name))

    async def find(
        self,
        *,
        skill: str = "",
        task: str = "",
        status: AgentStatus | None = None,
        id: str = "",
    ) -> list[AgentRecord]:
        """The registry: agents that have all of what is asked for, by name."""
        return await self.registry.find(skill=skill, task=task, status=status, id=id)

    async def versions(self, name: str) -> list[AgentVersion]:
        return await self.registry.versions(name)

    async def pause(self, name: str) -> AgentRecord:
        """Messages are accepted and wait; the one under way goes on."""
        return await self.registry.set_status(name, "paused")

    async def resume(self, name: str) -> AgentRecord:
        """Also one that was retired."""
        record = await self.registry.set_status(name, "active")
        self.wake(name)
        return record

    async def retire(self, name: str) -> AgentRecord:
        """Accept no messages any more. Everything is kept; `resume` brings it back."""
        return await self.registry.set_status(name, "retired")

    async def questions(self, agent: str | None = None) -> list[AgentQuestion]:
        """Those that wait for a person, the oldest first."""
        return await questions.open_questions(self.services.store, agent)

    async def answer(
        self, question: str, text: str = "", *, approve: bool = True, by: str = ""
    ) -> AgentQuestion:
        """Answer a question, or allow a call or not; its turn goes on. Raises `NotFound`, and
        `Conflict` if it was answered before.
        """
        return await self.answer_question(question, text, approve=approve, by=by)
