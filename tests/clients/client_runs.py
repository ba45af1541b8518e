"""Runs real clients through ``perdure proxy`` against a scripted model, and reads the bank."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

import perdure
from perdure.core.messages import Message, ToolCall
from perdure.history.log_records import SessionRecord
from perdure.history.message_identity import own_words, with_texts
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedModel
from tests.clients.installed_clients import program
from tests.patience import VARIABLES
from tests.server.serve_process import PERDURE

#: What the last text of a client's request for a summary begins with.
_SUMMARISE = (
    "CRITICAL: Respond with TEXT ONLY",
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
)
SUMMARY = "Summary of all that was said."
#: Seconds for one run of a client: a limit, not a measure.
_PATIENCE = 240


class Client(msgspec.Struct, frozen=True):
    """How a client is called. `{}` in a command is its newest conversation."""

    name: str
    agent: str  # how its agents' names begin
    #: The tool by which it runs a command, and its argument.
    shell: str
    argument: str
    fresh: tuple[str, ...]
    again: tuple[str, ...]
    fork: tuple[str, ...]
    #: Further arguments of the shell.
    more: dict[str, str] = {}

    def run(self, command: str, number: int) -> ToolCall:
        given = {self.argument: command, **self.more}
        return ToolCall(f"call_{self.name}_{number}", self.shell, json.dumps(given))


_CODEX = ("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access")
_OPENCODE = ("run", "--auto", "-m", "anthropic/claude-sonnet-4-5")
_CLAUDE = ("--allowedTools", "Bash,Agent", "-p")
CLAUDE = Client(
    *("claude", "claude-code@", "Bash", "command"),
    fresh=_CLAUDE,
    again=("--continue", *_CLAUDE),
    fork=("--continue", "--fork-session", *_CLAUDE),
)
CODEX = Client(
    *("codex", "codex@", "exec_command", "cmd"),
    fresh=_CODEX,
    again=(*_CODEX, "resume", "--last"),
    fork=(*_CODEX, "fork", "{}"),
)
OPENCODE = Client(
    *("opencode", "opencode@", "bash", "command"),
    fresh=_OPENCODE,
    again=(*_OPENCODE, "--continue"),
    fork=(*_OPENCODE, "--continue", "--fork"),
    more={"description": "a test"},
)


class Replies:
    """What the model says: for each prompt, by words in it, a list of answers, one a round."""

    def __init__(self, plan: Mapping[str, Sequence[ScriptedAnswer | str]]) -> None:
        self.plan = dict(plan)

    def __call__(self, request: ReceivedRequest) -> ScriptedAnswer | str:
        said = request.messages
        if "context summarization agent" in said[0].text:
            return SUMMARY
        if request.kind == "messages" and not request.body.get("tools"):
            return '{"title": "A title"}'
        items = request.body.get("input", [])
        if any(each.get("recipient", "/root") != "/root" for each in items):
            # One agent asks another, in words that only models can read.
            done = sum(1 for each in items if each.get("type") == "function_call")
            return self.plan["The task"][done]
        asked = [at for at, message in enumerate(said) if _words(message)]
        if not asked:
            return "Nothing was asked."
        words = _words(said[asked[-1]])
        if words.lstrip().startswith(_SUMMARISE) or said[-1].text.startswith(_SUMMARISE):
            return SUMMARY
        rounds = sum(1 for message in said[asked[-1] :] if message.role == "assistant")
        steps = next((steps for key, steps in self.plan.items() if key in words), ())
        return steps[rounds] if rounds < len(steps) else f"Answered: {words[-40:]}"


def _words(message: Message) -> str:
    """A user's own words, also beside results of tools."""
    if message.role not in {"user", "tool"}:
        return ""
    texts = [part.text for part in message.parts if isinstance(part, perdure.core.messages.Text)]
    return "\n".join(words for text in texts if (words := own_words(text)))


class Stage:
    """A home, a project and a bank for clients."""

    def __init__(self, folder: Path, model: ScriptedModel) -> None:
        self.home, self.project = folder / "home", folder / "attic"
        self.bank = f"sqlite:///{folder / 'bank.db'}"
        self.model = model
        self.codex = self.home / ".codex"
        self.codex.mkdir(parents=True)
        self.project.mkdir()
        self.configure_codex()
        self.said = ""  # by Perdure, at the end of the last run

    def configure_codex(self, *lines: str) -> None:
        quiet = ["[features]", "plugins = false", "[analytics]", "enabled = false"]
        (self.codex / "config.toml").write_text("\n".join([*lines, *quiet]))

    async def run(
        self,
        client: Client,
        arguments: Sequence[str],
        prompt: str,
        *options: str,
        code: int = 0,
        **variables: str,
    ) -> str:
        """What the client printed; its exit code has to be `code`."""
        words = [each.replace("{}", await self.newest(client)) for each in arguments]
        upstreams = [f"anthropic={self.model.url}", f"openai={self.model.url}"]
        command = [
            *(*PERDURE, "--bank", self.bank, "proxy", *options),
            *(word for each in upstreams for word in ("--upstream", each)),
            *("--", str(program(client.name)), *words, prompt),
        ]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.project,
            env={**self._variables(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_PATIENCE):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            raise
        lines = err.decode(errors="replace").splitlines()
        self.said = "\n".join(line for line in lines if line.startswith("perdure: "))
        assert process.returncode == code, (out[-2000:], err[-4000:])
        return out.decode()

    def _variables(self) -> dict[str, str]:
        return {
            **VARIABLES,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "ANTHROPIC_API_KEY": "key-a",
            "OPENAI_API_KEY": "key-o",
            "CODEX_API_KEY": "key-o",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            # It looks for plugins there: on loopback, where nobody is.
            "npm_config_registry": "http://127.0.0.1:9/",
        }

    async def newest(self, client: Client) -> str:
        found = await self.sessions(client)
        return found[-1].id.partition("/")[2] if found else ""

    async def sessions(self, client: Client) -> list[SessionRecord]:
        """Oldest first."""
        async with perdure.open(self.bank) as bank:
            records = bank.collection(SessionRecord)
            names = [each.id for each in await records.query().values()]
            found = [await records.fetch(name) for name in names if name.startswith(client.agent)]
        made = [(each.created_us, each.value) for each in found if each is not None]
        return [record for _, record in sorted(made, key=lambda each: each[0])]

    async def kept(self, only: Callable[[SessionRecord], bool] = lambda _: True) -> Counter[str]:
        """How often each prompt, call, result and answer is in the bank: shared turns of forks
        count once, where they were said.
        """
        found = Counter[str]()
        async with perdure.open(self.bank) as bank:
            for record in await bank.collection(SessionRecord).query().values():
                session = await bank.session(record.id)
                if not only(record):
                    continue
                async for turn in session.read(record.forked_at + 1, undone=True):
                    for message in await with_texts(turn.messages, bank.artifacts):
                        found.update(_said(message))
        return found

    @asynccontextmanager
    async def watching(self, format: str, folder: Path) -> AsyncIterator[None]:  # noqa: A002 (as below)
        """``perdure import --watch`` beside what runs here, until it was silent for a moment."""
        folder.mkdir(parents=True, exist_ok=True)
        command = [*PERDURE, "--bank", self.bank, "import", format, str(folder), "--watch"]
        process = await asyncio.create_subprocess_exec(
            *command, env=self._variables(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield
            await asyncio.sleep(3)  # it takes what is written last after a second of silence
            assert process.returncode is None
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def importing(self, format: str, folder: Path) -> int:  # noqa: A002 (that is what it is)
        """How many messages an import of the client's own files adds."""
        from perdure.importers import import_files

        async with perdure.open(self.bank) as bank:
            imported = await import_files(bank, format, [folder])
        return sum(each.messages for each in imported.sessions)


def _said(message: Message) -> list[str]:
    found = [f"{call.id}()" for call in message.calls]
    found += [f"={result.call}" for result in message.results]
    words = _words(message) if message.role != "assistant" else message.text
    return [*found, *([words.strip().strip('"')] if words.strip() else [])]
