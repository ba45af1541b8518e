"""What clients can read and choose beside the tools: resources and prompts."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.integrations.mcp_protocol import McpPrompt, McpResource
from perdure.integrations.mcp_tools import MemoryAccess

_LISTED = 50
#: Conversations whose pages of the journal are read.
_PAGES = 10


def resources(access: MemoryAccess) -> tuple[McpResource, ...]:
    async def sessions(_: str) -> str:
        scope = await access.scope()
        lines = [
            f"- {each.name}: {each.turns} turns, {each.active:%Y-%m-%d %H:%M}"
            for each in await scope.sessions(_LISTED)
            if each.active
        ]
        return "# Sessions, newest first\n\n" + ("\n".join(lines) or "There are none yet.") + "\n"

    async def tasks(_: str) -> str:
        project = await access.project()
        lines = [f"- {each.name} {each.title}" for each in await project.tasks.ready(_LISTED)]
        return f"# Ready tasks of {project.name}\n\n" + ("\n".join(lines) or "None.") + "\n"

    async def state(_: str) -> str:
        return await (await access.project()).state.text()

    async def journal(_: str) -> str:
        project = await access.project()
        pages = await project.journal.read((await project.work.list())[:_PAGES])
        return "\n".join([*pages.values()][-_PAGES:]) or "The journal is empty.\n"

    return (
        McpResource(
            uri="perdure://project/state",
            name="project-state",
            title="Project state",
            description="Goals, milestones, checkpoints and links, as their file has them.",
            read=state,
            mime="application/json",
        ),
        McpResource(
            uri="perdure://project/journal",
            name="journal",
            title="Journal",
            description="What was asked, done and decided in the newest conversations.",
            read=journal,
        ),
        McpResource(
            uri="perdure://sessions",
            name="sessions",
            title="Sessions",
            description="Past conversations in this project, newest first.",
            read=sessions,
        ),
        McpResource(
            uri="perdure://tasks/ready",
            name="ready-tasks",
            title="Ready tasks",
            description="Tasks that can be begun now.",
            read=tasks,
        ),
    )


def project_prompts() -> tuple[McpPrompt, ...]:
    async def resume(given: Mapping[str, str]) -> str:
        topic = given.get("topic", "").strip()
        about = f" about {topic}" if topic else ""
        return (
            f"Go on with our work{about}. First call recall{about or ' with what we did last'}"
            " and project_preamble; tell me in a few lines where we stand, what is decided and what"
            " is open; then propose the next step."
        )

    async def learn(_: Mapping[str, str]) -> str:
        return (
            "Look back at this conversation. Call remember once for each decision, preference and"
            " lesson that will matter in later sessions and is not in the code; call task_add for"
            " what is left to do. Then tell me what you kept."
        )

    return (
        McpPrompt(
            name="resume",
            title="Go on where we were",
            description="Recall the state of the work and propose the next step.",
            arguments={"topic": "What to go on with; leave it empty for the latest."},
            write=resume,
        ),
        McpPrompt(
            name="keep",
            title="Keep what we learnt",
            description="Remember decisions and lessons of this conversation, and open tasks.",
            write=learn,
        ),
    )
