"""The sections of the configuration, and their validation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from perdure.config.section import Count, RefusedSetting, Seconds, Section
from perdure.core.band_marks import completed


class StorageConfig(Section, frozen=True):
    """How the bank keeps its records."""

    #: Compress the types that ask for it, and large values of the others.
    compression: bool = True
    #: Bytes above which values of types that do not ask for it are compressed, too; 0: none are.
    compress_above: Annotated[int, msgspec.Meta(ge=0)] = 4_096
    #: Seconds between two sweeps of expired records.
    sweep_every: Seconds = 60.0
    #: Seconds between two looks for events that other processes emitted.
    deliver_every: Seconds = 1.0
    #: Address of a PostgreSQL replica that answers reads which need not be the newest.
    replica: str = ""


class CacheConfig(Section, frozen=True):
    """Records kept in memory; only those of your own types."""

    #: How many records this process keeps. 0: none, there is no cache.
    entries: Count = 0
    #: Seconds for which one may be used without a look at the store.
    ttl: Seconds = 60.0
    #: Address of a Valkey or Redis that processes share as a second cache; empty: none.
    shared: str = ""
    #: The collections to keep; none given: all.
    collections: tuple[str, ...] = ()


class EncryptionConfig(Section, frozen=True):
    """How records are encrypted. What is marked `Encrypted()` is refused without a key."""

    #: Where the master key is: ``file:PATH`` or ``env:VARIABLE``. Never the key itself.
    key: str = ""
    #: Where earlier master keys are, until everything has been wrapped with the present one.
    former_keys: tuple[str, ...] = ()
    #: What has a data key of its own: each collection, or what stands before the first slash of a
    #: record's key (the agent, in Perdure's own collections).
    scope: Literal["collection", "agent"] = "collection"
    #: Encrypt every record and artifact, not only types with a field marked `Encrypted()`.
    everything: bool = False
    #: Encrypt the whole SQLite file instead, and large artifacts; needs apsw-sqlite3mc.
    whole_file: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for source in (*((self.key,) if self.key else ()), *self.former_keys):
            if source.partition(":")[0] not in {"file", "env"} or not source.partition(":")[2]:
                raise RefusedSetting(
                    "A master key is named by file:PATH or env:VARIABLE.",
                    hint="Put the key in a file or a variable, and name that.",
                )
        if self.everything and self.whole_file:
            raise RefusedSetting(
                "encryption.everything and encryption.whole_file would encrypt everything twice.",
                hint="For a SQLite bank choose whole_file, for any other everything.",
            )


class AuditConfig(Section, frozen=True):
    """Which records leave a trail: who did what to them, and when."""

    #: Collections whose writes are recorded; ``*`` for all of your own, sessions and memories.
    collections: tuple[str, ...] = ()
    #: Collections whose reads are recorded, too.
    reads: tuple[str, ...] = ()
    #: Who acts, unless the program says so with `perdure.acting_as`; empty: the user of the system.
    actor: str = ""


class AlertConfig(Section, frozen=True, kw_only=True):
    """A limit for operations; an event is raised above it."""

    #: What the event calls it.
    name: Annotated[str, msgspec.Meta(min_length=1)]
    #: Seconds that a share of calls took, errors per call, calls, or bytes.
    measure: Literal["p50", "p95", "p99", "error_rate", "errors", "calls", "bytes_written"]
    #: The limit.
    over: Annotated[float, msgspec.Meta(ge=0)]
    #: Which calls; empty: all.
    operation: Literal["", "get", "find", "summarize", "search", "commit", "remove", "rewrite"] = ""
    #: Which collection; empty: all.
    collection: str = ""
    #: Seconds that are measured together.
    window: Seconds = 60.0
    #: Least calls in a window.
    least: Count = 1


class MetricsConfig(Section, frozen=True):
    """What is told about operations."""

    #: OpenTelemetry spans and metrics, where opentelemetry is installed and set up.
    telemetry: bool = True
    #: Seconds between two snapshots that a process stores for `perdure metrics`; 0: none.
    publish_every: Annotated[float, msgspec.Meta(ge=0)] = 15.0
    #: Limits that raise an event when operations do not keep them.
    alerts: tuple[AlertConfig, ...] = ()


class ArtifactsConfig(Section, frozen=True):
    """Where large content lies."""

    #: A folder; empty: beside the bank's file, or in the user's data folder.
    folder: str = ""
    #: An S3 store instead: ``s3://bucket/prefix?region=…&endpoint=…``, with the usual AWS
    #: credentials.
    url: str = ""
    #: The former folder or URL, still read until `perdure artifacts move` has moved everything.
    former: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folder and self.url:
            raise RefusedSetting(
                "Artifacts are in a folder or in an S3 store, not in both.", hint="Set one."
            )


_Complexity = Literal["simple", "moderate", "complex"]
#: Dollars for a million tokens.
_Price = Annotated[float, msgspec.Meta(ge=0)]


class ProviderConfig(Section, frozen=True):
    """A model server. Defaults are those of the built-in provider of the same name."""

    holds_no_keys: ClassVar[bool] = True

    #: Which API it speaks: Chat Completions, Responses or Anthropic's Messages.
    wire: Literal["chat", "responses", "messages"] | None = None
    #: ``{NAME}`` in it stands for the variable of that name.
    base_url: str | None = None
    #: The variable, or the entry in the system's keyring, that holds the key. Never the key itself.
    key_variable: str | None = None
    #: Whether it is called at all without a key.
    needs_key: bool | None = None
    #: The path of embeddings; empty if it has none.
    embeddings: str | None = None
    #: Whether it has the batch mode of OpenAI or, with the wire ``messages``, of Anthropic.
    batch: bool | None = None
    #: Further headers, sent with each request. Not for keys: they are shown.
    headers: dict[str, str] = {}
    #: Where the server differs from its wire format's owner; see `gateway.providers.Habits`.
    habits: dict[str, bool | int | str] = {}
    #: Calls at the same time, at most.
    concurrency: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ModelsByComplexity(Section, frozen=True):
    """Models by complexity of the work; an empty one takes those of its neighbour."""

    #: For simple work.
    simple: str | tuple[str, ...] = ()
    #: For work that is neither.
    moderate: str | tuple[str, ...] = ()
    #: For complex work.
    complex: str | tuple[str, ...] = ()


class CompressionModels(ModelsByComplexity, frozen=True):
    """The same for renditions, with models of their own for levels. A level that has none takes
    those by complexity, and the algorithm's renditions stay if there are none either.
    """

    #: For S.
    smooth: str | tuple[str, ...] = ()
    #: For C.
    compressed: str | tuple[str, ...] = ()
    #: For T.
    tiny: str | tuple[str, ...] = ()


#: The tasks of calls that make renditions.
COMPRESSION_TASKS = ("smooth", "compressed", "tiny")

#: ``provider/model``, several of them in order of preference, or those by complexity.
_Models = str | tuple[str, ...] | ModelsByComplexity


class ModelsConfig(Section, frozen=True):
    """Models by purpose. A purpose without any has none: see `gateway.catalog`."""

    #: Answers: `perdure ask`, agents, chats, the proxy with `via_gateway`.
    chat: _Models = ()
    #: Shortens turns.
    compress: str | tuple[str, ...] | CompressionModels = ()
    #: Says which candidates of a recall belong to the question.
    filter: _Models = ()
    #: Chooses among those; judges answers and disputes.
    judge: _Models = ()
    #: Distils memories.
    reflect: _Models = ()
    #: Embeds texts.
    embed: _Models = ()

    def compression_tasks(self) -> tuple[str, ...]:
        """Those that models are configured for."""
        found = self.compress
        if not isinstance(found, CompressionModels):
            return COMPRESSION_TASKS if found else ()
        if found.simple or found.moderate or found.complex:
            return COMPRESSION_TASKS
        return tuple(task for task in COMPRESSION_TASKS if getattr(found, task))


class BudgetConfig(Section, frozen=True, kw_only=True):
    """What may be spent in a time: on everything, on one purpose, by one agent."""

    #: What reports and errors call it.
    name: Annotated[str, msgspec.Meta(min_length=1)]
    #: Which purpose; empty: all.
    purpose: Literal["", "chat", "compress", "filter", "judge", "reflect", "embed"] = ""
    #: Which agent; empty: all.
    agent: str = ""
    #: Days and months are those of UTC.
    per: Literal["hour", "day", "month", "ever"] = "day"
    #: Tokens in that time, in and out.
    tokens: Count | None = None
    #: Dollars in that time.
    dollars: Annotated[float, msgspec.Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens is None and self.dollars is None:
            raise RefusedSetting(
                f"The budget {self.name!r} limits neither tokens nor dollars.",
                hint="Set tokens, dollars, or both.",
            )


class PriceConfig(Section, frozen=True):
    """What a model costs, in dollars for a million tokens; before the prices that are built in."""

    #: What is sent.
    input: _Price
    #: What is answered.
    output: _Price
    #: What is read from the provider's cache; None: as `input`.
    cache_read: _Price | None = None
    #: What is written to it; None: as `input`.
    cache_write: _Price | None = None


class GatewayConfig(Section, frozen=True):
    """How models are called."""

    #: The provider whose models come first; empty: as listed.
    default: str = ""
    #: Seconds that one attempt may take to answer, and a stream to say something more.
    timeout: Seconds = 120.0
    #: Seconds to reach a server.
    connect_timeout: Seconds = 10.0
    #: Seconds for everything: queueing, retries, fallbacks.
    deadline: Seconds = 600.0
    #: Further attempts at the same model.
    retries: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    #: Answer the same request from the cache. Off: who asks twice may want another answer.
    cache: bool = False
    #: Seconds for which an answer may be used again.
    cache_ttl: Seconds = 86_400.0
    #: How a model is chosen among several: by what was learnt for the agent (calls without one: by
    #: health), by the first design's formula, by a table of tiers, or as listed, adjusted by
    #: health.
    selector: Literal["learned", "seed", "table", "health"] = "learned"
    #: Whether batches go through providers' batch modes, at half price; otherwise live.
    batch: bool = True
    #: Seconds until a batch that was sent is looked at; further pauses grow, up to 15 minutes.
    batch_poll: Seconds = 60.0
    #: Live calls of a batch at the same time, where the provider has no batch mode.
    batch_concurrency: Annotated[int, msgspec.Meta(ge=1)] = 4
    #: Servers of models, and changes to those that are built in.
    providers: dict[str, ProviderConfig] = {}
    #: Models by purpose.
    models: ModelsConfig = ModelsConfig()
    #: Kinds of work, by the name that callers give them.
    tasks: dict[str, _Complexity] = {}
    #: What may be spent.
    budgets: tuple[BudgetConfig, ...] = ()
    #: Prices by ``provider/model``, before those that are built in.
    prices: dict[str, PriceConfig] = {}


class LearningConfig(Section, frozen=True):
    """What agents learn from their calls."""

    #: How much quality, from 0 to 1, a dollar is worth.
    cost_weight: Annotated[float, msgspec.Meta(ge=0)] = 4.0
    #: How much a second is worth.
    latency_weight: Annotated[float, msgspec.Meta(ge=0)] = 0.004
    #: The share of an agent's calls that are judged, if there is a model for `judge`.
    judge_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    #: Tokens that judging may take in a day.
    judge_tokens: Count = 200_000
    #: Seconds of silence after which a session may change its model.
    sticky: Seconds = 300.0
    #: Whether agents learn from each other's labels.
    shared: bool = True
    #: What models are, by ``provider/model``; else their price says it.
    tiers: dict[str, Literal["small", "medium", "large"]] = {}
    #: Whether trends start tests of other models, prompts, budgets and recall.
    experiments: bool = True
    #: Interactions of an agent before variants of how it works are tested.
    experiment_after: Count = 100
    #: Sessions that each side of a test needs before it can end well.
    experiment_sessions: Count = 20
    #: Whether a variant that won is used at once, or waits for `perdure agent evolve accept`.
    promote: Literal["automatic", "accept"] = "accept"


class PruneRule(Section, frozen=True):
    """How the results of some tools are shortened. Errors keep their ends and error lines."""

    #: Names of tools or shell programs, with ``*`` and ``?``. Case, and a server's prefix
    #: (``mcp__files__read_file``), do not matter.
    tool: str | tuple[str, ...]
    #: Characters up to which a result stays as it is.
    over: Count = 2_000
    #: A number of files; the first and last lines; everything; nothing.
    keep: Literal["count", "ends", "all", "none"] = "ends"
    #: Lines of the beginning, at most …
    head: Count = 20
    #: … and of the end.
    tail: Count = 20
    #: So many tokens at most, together with what is said about what was left out; None: as many as
    #: `history.prune_tokens`.
    tokens: Count | None = None
    #: Whether the text may report errors and exit codes. Not so for a file.
    errors: bool = True


class ArtifactRule(Section, frozen=True):
    """Which argument of some tools holds the content that becomes an artifact."""

    #: As in `PruneRule`.
    tool: str | tuple[str, ...]
    #: Names of arguments; the first one that is there holds it.
    content: str | tuple[str, ...] = (
        *("content", "contents", "code", "file_text", "new_source", "source", "text", "html"),
        *("body", "new_string", "new_str", "insert_text", "code_edit", "patch", "diff", "input"),
    )
    #: Characters above which it moves to the artifact store; None: above `history.offload_over`.
    over: Count | None = None
    #: Without such an argument the tool's result is the content, and moves whatever its size.
    result: bool = False


class SecretsConfig(Section, frozen=True):
    """What is masked before it is written."""

    #: Mask secrets before anything is written.
    mask: bool = True
    #: What is no secret: the value itself, or an expression between slashes: ``/^test-/``.
    allow: tuple[str, ...] = ()
    #: Ids of rules that are not applied.
    off: tuple[str, ...] = ()
    #: Further rules: a name, and a regular expression whose first group, or all of it, is masked.
    rules: dict[str, str] = {}


class HistoryConfig(Section, frozen=True):
    """How turns are kept."""

    #: Text of more characters moves to the artifact store.
    offload_over: Annotated[int, msgspec.Meta(ge=256)] = 16_384
    #: Which content of tool calls becomes an artifact; before the rules that come with Perdure.
    artifacts: tuple[ArtifactRule, ...] = ()
    #: Seconds between two saves of an answer that arrives.
    heartbeat: Annotated[float, msgspec.Meta(gt=0, le=5)] = 2.0
    #: How tool results are shortened for readers; before the rules that come with Perdure.
    prune: tuple[PruneRule, ...] = ()
    #: Tokens of a shortened result, unless its rule says otherwise.
    prune_tokens: Annotated[int, msgspec.Meta(ge=1)] = 20_000
    #: How a session's history is shown to a model, unless it says itself.
    strategy: str = "gradient"
    #: In how many tokens, unless it says itself.
    budget: Annotated[int, msgspec.Meta(ge=500)] = 100_000
    #: Strategies of your own, by name: ``my_package.history:Headlines``.
    strategies: dict[str, str] = {}
    #: How full the gradient plans a window, unless the session says.
    profile: Literal["full", "thrifty"] = "full"
    #: Marks of your own instead of those of `full`.
    marks: dict[str, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            if self.marks:  # the others need no look
                completed(self.marks)
        except ValueError as exc:
            raise RefusedSetting(
                f"history.marks: {exc}.", hint="docs/configuration.md lists the marks."
            ) from exc


class RenditionsConfig(Section, frozen=True):
    """How turns are shortened."""

    #: Let a model shorten them too, where one is configured for `compress`.
    model: bool = True
    #: Calls at the same time: S, C and T of two turns.
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=64)] = 6
    #: How often a call that fails is tried before what the algorithm made stays for good.
    attempts: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3


class RecallConfig(Section, frozen=True):
    """How the past is brought back."""

    #: Index turns as they are written, and add what is relevant to each prompt.
    on: bool = True
    #: Seconds for all steps together …
    deadline: Seconds = 1.0
    #: … of which so many at most go to the search by words …
    keyword: Seconds = 0.1
    #: … to the search by meaning (with 0 there is none, and no embedder is loaded) …
    vectors: Annotated[float, msgspec.Meta(ge=0)] = 0.2
    #: … to models of `filter` …
    filters: Seconds = 0.5
    #: … and are kept for the judge.
    judge: Seconds = 0.2
    #: The model that embeds texts: ``provider/model`` of the gateway,
    #: ``sentence-transformers/NAME``, or empty for the one configured for `embed`, by default the
    #: local one.
    embedder: str = ""
    #: Candidates that models of `filter` look at, at most.
    swarm: Count = 100
    #: Such calls at the same time.
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50
    #: Tokens of the history that a judge is shown, older turns at T, newer ones at C.
    judge_tokens: Count = 8_000
    #: One-line reminders beside a prompt, at most.
    pointers: Annotated[int, msgspec.Meta(ge=0, le=20)] = 12
    #: Most tokens beside a prompt for turns in full; fewer in a small budget.
    full_tokens: Count = 2_400
    #: The same for one-line reminders.
    tickler_tokens: Count = 600
    #: The same for memories.
    memory_tokens: Count = 600
    #: The same for reference layers.
    reference_tokens: Count = 5_000
    #: A folder of reference layers: Markdown files.
    references: str = ""


class ReflectionConfig(Section, frozen=True):
    """How memories are distilled from past turns."""

    #: Hours between two runs in the background; 0: only by hand. Nothing runs by itself unless a
    #: model is configured for `reflect` …
    every: Annotated[float, msgspec.Meta(ge=0)] = 8.0
    #: … or this is set: then what an algorithm finds.
    without_model: bool = False
    #: Minutes without a message after which a session is idle. Others wait for the next run.
    idle: Annotated[float, msgspec.Meta(ge=0)] = 15.0
    #: Tokens of history that a run looks at in all.
    view: Annotated[int, msgspec.Meta(ge=1_000, le=2_000_000)] = 1_000_000
    #: Tokens of one request.
    window: Annotated[int, msgspec.Meta(ge=2_000, le=2_000_000)] = 150_000
    #: Tokens that may be taken in a day (UTC). None: no limit of its own.
    tokens: Count | None = 4_000_000
    #: Dollars that may be spent in a day. None: no limit of its own.
    dollars: Annotated[float, msgspec.Meta(ge=0)] | None = None
    #: Days after which the weight of a topic that nobody speaks of is half.
    half_life: Annotated[float, msgspec.Meta(gt=0)] = 30.0


#: Bytes of a request's body.
_Bytes = Annotated[int, msgspec.Meta(ge=1_024)]


class ServerConfig(Section, frozen=True):
    """How `perdure serve` listens."""

    #: Where. Anything but loopback is refused while there are no tokens.
    host: str = "127.0.0.1"
    #: 0: any that is free.
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 7_788
    #: Further names by which it is called, as in a Host header.
    names: tuple[str, ...] = ()
    #: Most bytes in the body of a request to the API.
    max_body: _Bytes = 8 << 20
    #: The same for the proxy.
    max_proxy_body: _Bytes = 64 << 20
    #: Seconds for which a login by the code on the terminal is good.
    login_for: Seconds = 43_200.0
    #: Whether an answer to a chat goes on when its client leaves. It is kept in any case.
    chat_goes_on: bool = True
    #: Seconds that requests and chats get to end when the server is stopped.
    grace: Annotated[float, msgspec.Meta(ge=0)] = 10.0


class ProxyConfig(Section, frozen=True):
    """What the proxy does with requests of unchanged clients."""

    #: Tokens up to which a history goes upstream as it is; 0: `history.budget`.
    budget: Count = 0
    #: Put what recall finds beside the prompt.
    recall: bool = False
    #: Offer history tools to the model, and answer them in the proxy.
    tools: bool = False
    #: The usage that clients are told: of the window that was sent, or of their whole history.
    usage: Literal["window", "whole"] = "window"
    #: Refuse a request if Perdure's own part fails, instead of passing it on unchanged.
    strict: bool = False
    #: Answer with the models of the gateway instead of passing requests on.
    via_gateway: bool = False
    #: Where requests go: by wire, `anthropic` and `openai`; one that is not named goes to the
    #: public API of its owner.
    upstreams: dict[Literal["anthropic", "openai"], str] = {}


class AgentsConfig(Section, frozen=True):
    """How agents work, and what they keep of it."""

    #: Seconds after which an agent is taken over from a process on another host that is silent.
    lease: Seconds = 30.0
    #: Seconds between two looks for messages of other processes, and for schedules.
    poll: Seconds = 1.0
    #: How often a message is tried before it is parked. While a provider is away, it waits.
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    #: Address of a store for working memory, such as a Valkey; empty: the bank.
    working_store: str = ""
    #: Seconds that a session's working memory is kept after its last use: 1 to 24 hours.
    working_ttl: Annotated[float, msgspec.Meta(ge=3_600, le=86_400)] = 3_600.0
    #: Bytes of an agent's working memory. What is oldest goes first.
    working_bytes: Annotated[int, msgspec.Meta(ge=10_000)] = 1_000_000
    #: Days for which episodes are kept.
    episode_days: Annotated[int, msgspec.Meta(ge=1)] = 90
