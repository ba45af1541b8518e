"""Tools of an agent: Python functions that its model may call.

    @perdure.tool(idempotent=True)
    async def lookup(customer: str, limit: int = 5) -> list[Order]:
        \"\"\"Find a customer's orders.

        Args:
            customer: Name or number.
        \"\"\"

    agent = await bank.agent("router", prompt="…", tools=[lookup])

Name, description and schema come from the function's name, docstring and signature. A function
that is not async runs in a thread of its own. What it raises, and what a model wrote that does not
fit, is told to the model. A parameter annotated `ToolContext` is filled in, and not shown to the
model.

A tool's work outside the bank cannot be undone or fenced. Before it begins, an intent is written,
which goes with its result. After a crash, an intent without a result means that nobody knows: the
model and the caller are told so, unless the tool is `idempotent`; then it is run again.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import hashlib
import inspect
import re
import threading
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Annotated, Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from perdure.agents.agent_lease import HeldLease
from perdure.agents.agent_records import ToolDeclaration
from perdure.core.errors import AgentError, InvalidInput, PerdureError
from perdure.gateway.calls import Tool

P = ParamSpec("P")
R = TypeVar("R")

MOST_RESULT = 200_000  # Characters of a result that are shown to the model.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}").fullmatch
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.+)$|^\s*:param\s+(\w+):\s*(.+)$")
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?)\s*:?\s*$")


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls a tool, and why."""

    agent: str
    #: The message's id, and what its sender gave with it.
    message: str
    context: dict[str, Any]
    session: str
    task: str = ""
    call: str = ""
    #: The same if the tool is run again: for services that take an idempotency key.
    key: str = ""


class ToolRun:
    """What a running tool's code acts on behalf of. Messages that it sends name it."""

    def __init__(self, context: ToolContext, chain: tuple[str, ...], lease: HeldLease) -> None:
        self.context = context
        self.chain = (*chain, context.agent)
        self.lease = lease
        self._sent = Counter[str]()

    def next_key(self, *said: object) -> str:
        """For a message that the tool sends: the same if the tool is run again and says the same,
        in whatever order. Only what is said twice is numbered.
        """
        content = msgspec.json.encode(said, enc_hook=str, order="deterministic")
        digest = hashlib.sha256(content).hexdigest()[:32]
        self._sent[digest] += 1
        return f"{self.context.key}/{digest}.{self._sent[digest]}"


_running: ContextVar[ToolRun | None] = ContextVar("perdure_tool_run", default=None)


def current_run() -> ToolRun | None:
    """None outside of tools."""
    return _running.get()


class AgentTool(Generic[P, R]):
    """A function as a tool. Calling it calls the function. Raises `InvalidInput` if it cannot be
    one.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str = "",
        description: str = "",
        approval: bool = False,
        idempotent: bool = False,
    ) -> None:
        if not callable(function):
            raise InvalidInput(
                f"{function!r} is no tool.", hint="Give a function, async or not, or perdure.tool."
            )
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or getattr(function, "__name__", "")
        if not _NAME(self.name):
            raise InvalidInput(
                f"{self.name!r} cannot be the name of a tool.",
                hint='Use letters, digits, _ and -: perdure.tool(name="…").',
            )
        words, about = _documented(inspect.getdoc(function) or "")
        self._context_parameter, self._arguments = _arguments_of(function, self.name, about)
        self._is_async = inspect.iscoroutinefunction(_routine(function))
        self.declaration = ToolDeclaration(
            self.name,
            description or words,
            _schema(self._arguments, self.name),
            approval,
            idempotent,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<AgentTool {self.name}>"

    @property
    def tool(self) -> Tool:
        return declared_tool(self.declaration)

    def read_arguments(self, arguments: str) -> msgspec.Struct:
        """Raises `InvalidInput`, in words for the model."""
        try:
            return msgspec.json.decode(arguments.strip() or "{}", type=self._arguments)
        except msgspec.DecodeError as exc:
            raise InvalidInput(
                f"The arguments of {self.name} do not fit: {str(exc).rstrip('.')}.",
                hint=f"Its schema is {msgspec.json.encode(self.declaration.parameters).decode()}.",
            ) from exc

    async def run(self, given: msgspec.Struct, run: ToolRun) -> str:
        """Raises whatever the function raises."""
        named = {field: getattr(given, field) for field in given.__struct_fields__}
        if self._context_parameter:
            named[self._context_parameter] = run.context
        token = _running.set(run)
        try:
            function: Callable[..., Any] = self.function
            if self._is_async:
                result = await function(**named)
            else:
                result = await _in_own_thread(functools.partial(function, **named), self.name)
                if inspect.isawaitable(result):
                    result = await result
        except SystemExit as exc:
            raise _left(self.name, exc) from exc
        finally:
            _running.reset(token)
        return _told(result)


@overload
def tool(function: Callable[P, R], /) -> AgentTool[P, R]: ...
@overload
def tool(
    *, name: str = "", description: str = "", approval: bool = False, idempotent: bool = False
) -> Callable[[Callable[P, R]], AgentTool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a function a tool of agents.

    With `approval`, a person has to allow each call. `idempotent` says that running it twice is as
    good as once: after a crash it is run again, instead of being reported as interrupted.
    """
    if function is not None:
        return AgentTool(function)
    return lambda given: AgentTool(given, **settings)


def tools_in(given: Iterable[Any]) -> dict[str, AgentTool[..., Any]]:
    """By name. Raises `InvalidInput` for what is no tool, and for two of one name."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput("tools are a list of functions.", hint="Give tools=[…].")
    found = dict[str, AgentTool[..., Any]]()
    for each in given:
        made = each if isinstance(each, AgentTool) else AgentTool(each)
        if made.name in found or made.name == ASK_PERSON:
            raise InvalidInput(
                f"There are two tools called {made.name}.", hint='Use perdure.tool(name="…").'
            )
        found[made.name] = made
    return found


#: The tool by which a model asks a person. Every agent has it, unless it is disallowed.
ASK_PERSON = "ask_person"
ASK_PERSON_TOOL = Tool(
    ASK_PERSON,
    "Ask a person, and wait for the answer. Only for what you cannot find out or decide yourself:"
    " the answer may take hours.",
    {
        "type": "object",
        "properties": {"question": {"type": "string", "description": "Everything one must know."}},
        "required": ["question"],
    },
)


def declared_tool(declaration: ToolDeclaration) -> Tool:
    parameters = declaration.parameters or {"type": "object", "properties": {}}
    return Tool(declaration.name, declaration.description, parameters)


def failure(exc: Exception) -> str:
    """What a model is told about an error of a tool."""
    if isinstance(exc, PerdureError):
        return str(exc)
    return f"{type(exc).__name__}: {exc}"[:4_000]


async def _in_own_thread(function: Callable[[], Any], name: str) -> Any:
    """One that hangs keeps no thread that others wait for, nor the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def tell(result: Any, exc: BaseException | None) -> None:
        if done.done():
            return  # nobody waits any more
        if exc is None:
            done.set_result(result)
        else:
            done.set_exception(exc)

    def run() -> None:
        result: Any = None
        raised: BaseException | None = None
        try:
            result = context.run(function)
        except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as exc:
            raised = _left(name, exc)  # a future cannot hold them, or they would end the process
        except BaseException as exc:  # noqa: BLE001  # it is raised where the tool is awaited
            raised = exc
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, raised)

    threading.Thread(target=run, name=f"perdure-tool-{name}", daemon=True).start()
    return await done


def _left(name: str, exc: BaseException) -> AgentError:
    what = ": ".join(filter(None, (type(exc).__name__, str(exc))))
    return AgentError(f"The tool {name} raised {what}.")


def _told(result: Any) -> str:
    if isinstance(result, str):
        text = result
    elif result is None:
        text = "Done."
    else:
        try:
            text = msgspec.json.encode(result, enc_hook=str).decode()
        except (TypeError, ValueError):
            text = str(result)
    if len(text) > MOST_RESULT:
        left = len(text) - MOST_RESULT
        text = f"{text[:MOST_RESULT]}\n[{left:,} more characters were left out]"
    return text


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """The description, and what is said about each parameter."""
    about, words = dict[str, str](), list[str]()
    section = ""
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section = found[1]
            continue
        argument = _ARGUMENT.match(line)
        if argument and (argument[3] or section in {"Args", "Arguments", "Parameters"}):
            about[argument[1] or argument[3]] = (argument[2] or argument[4]).strip()
        elif not section:
            words.append(line)
    return "\n".join(words).strip(), about


def _arguments_of(
    function: Callable[..., Any], name: str, about: Mapping[str, str]
) -> tuple[str, type[msgspec.Struct]]:
    """The parameter for the context, if there is one, and a struct of the others."""
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(_routine(function), include_extras=True)
    except (TypeError, ValueError, NameError) as exc:
        raise InvalidInput(
            f"The signature of the tool {name} cannot be read: {exc}.",
            hint="Annotate its parameters with types that can be imported where it is.",
        ) from exc
    context = ""
    fields = list[Any]()
    for parameter in signature.parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidInput(
                f"The tool {name} has parameters without names.", hint="Remove the / from it."
            )
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            context = parameter.name
            continue
        if parameter.name in about:
            hint = Annotated[hint, msgspec.Meta(description=about[parameter.name])]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            make: Callable[[], Any] = functools.partial(_same, parameter.default)
            fields.append((parameter.name, hint, msgspec.field(default_factory=make)))
    try:
        made = msgspec.defstruct(name.replace("-", "_"), fields, kw_only=True)
        msgspec.json.Decoder(made)
    except (TypeError, ValueError) as exc:
        raise InvalidInput(
            f"The tool {name} has a parameter of a type that JSON cannot give: {exc}.",
            hint="Use text, numbers, lists, dicts, dataclasses, msgspec structs, enums.",
        ) from exc
    return context, made


def _routine(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs: of an object that can be called, its method."""
    plain: Callable[..., Any] = inspect.unwrap(function)
    return plain if inspect.isroutine(plain) else type(plain).__call__


def _same(value: Any) -> Any:
    return value


def _schema(arguments: type[msgspec.Struct], name: str) -> dict[str, Any]:
    try:
        (root,), components = msgspec.json.schema_components(
            [arguments], ref_template="#/$defs/{name}"
        )
    except TypeError as exc:
        raise InvalidInput(
            f"The tool {name} has a parameter without a JSON schema: {exc}.",
            hint="Use text, numbers, lists, dicts, dataclasses, msgspec structs, enums.",
        ) from exc
    own: dict[str, Any] = components.pop(str(root["$ref"]).rpartition("/")[2])
    own.pop("title", None)
    return {**own, "$defs": components} if components else own
