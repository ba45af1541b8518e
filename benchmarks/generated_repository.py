"""A repository with as many files and commits as asked for, made in seconds by `git fast-import`.

Components have code, tests, docs and configuration. In some files facts are planted: a port, an
owner, how often something is tried again. Each is worded as such a file would word it, and changes
from commit to commit, moves to another file, or goes. Questions are worded otherwise.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NOUNS = """
    account address alarm archive asset audit backup badge basket bill booking bucket budget
    cargo catalog channel charge claim client cluster comment contract coupon course crate
    customer delivery device digest domain draft driver email event export fleet forecast gift
    grant group harbour hotel image intake index insurance invoice journal kitchen label ledger
    lesson licence locker lottery mail market member meter mirror notice offer order parcel
    parking passport patient payment pension photo pipeline player policy prize quote receipt
    recipe refund region rental report reward route salary scan schedule season seat session
    shelf shipment signal snapshot station stock storage survey tariff tax team ticket token
    tour trade traffic trip tunnel upload vehicle seller video visa vote voucher wallet
    warehouse weather window worker
""".split()  # noqa: SIM905 - as a list it would take a page
_ROLES = """
    adapter allocator archiver balancer broker builder cache checker cleaner collector
    dispatcher exporter feeder finder forwarder gateway importer indexer keeper loader mailer
    matcher merger monitor notifier packer parser planner printer publisher reader recorder
    relay renderer resolver router scanner scheduler sender sorter splitter syncer tracker
    validator watcher
""".split()  # noqa: SIM905 - as a list it would take a page
_VERBS = """
    accept add align apply assign attach build cancel check clear close collect compare compute
    convert copy count create decode defer delete detach discard emit encode ensure expand
    extract fetch fill filter find flush format gather group handle hold insert join load lock
    map mark match merge move notify open parse pick poll prepare probe publish pull push read
    record refresh release remove render replace report reset resolve restore resume return
    reverse save scan select send share skip sort split start stop store submit sum swap sync
    trace trim unlock update validate verify wait wrap write
""".split()  # noqa: SIM905 - as a list it would take a page
_THINGS = """
    amount author batch body buffer bytes cell chunk code column context count cursor date delta
    depth detail edge entry error factor field file flag format frame gap handle hash head
    header hint id interval item key kind label latency layer length level limit line link list
    lookup margin mask matrix message mode name node note number offset option order owner page
    pair path payload phase point prefix price priority quantity query range rank rate ratio
    record reference reply request result role root row rule sample scope score section segment
    size slice slot source span stage state status step suffix sum table target text time title
    total type unit user value version view weight width window zone
""".split()  # noqa: SIM905 - as a list it would take a page
_SENTENCES = (
    "The {a} is read before the {b} is {v}ed, because a late {c} would {w} it twice.",
    "If no {a} is given, the {b} of the {c} is used.",
    "Each {a} has one {b}; several of them share a {c}.",
    "Call this when a {a} was {v}ed by hand and its {b} is stale.",
    "An empty {a} means that the {b} did not change since the last {c}.",
    "Do not {w} the {a} here: the {b} belongs to another {c}.",
    "This keeps the {a} in step with the {b}, even where a {c} is missing.",
    "The {a} and the {b} are compared by their {c}, never by their order.",
    "It is safe to {w} a {a} again; the {b} of the first one wins.",
)


class _Kind(NamedTuple):
    """A fact, as docs, code and configuration put it, the question for it, and its values."""

    docs: str
    code: str
    settings: str
    question: str
    values: tuple[str, ...]


def _numbers(*values: int) -> tuple[str, ...]:
    return tuple(map(str, values))


_KINDS = (
    _Kind(
        "A call that fails is tried again {v} times before the job is given up.",
        "# Attempts at a call before the job is given up.\nMAX_ATTEMPTS = {v}",
        "# failed calls are tried again\nmax_attempts: {v}",
        "How often does the {c} repeat a call that failed until it gives up?",
        _numbers(3, 4, 5, 6, 7, 8, 9, 11, 12, 13),
    ),
    _Kind(
        "It waits {v} seconds for the peer to answer, then the connection is dropped.",
        "# Seconds to wait for the peer before the connection is dropped.\nPEER_TIMEOUT = {v}",
        "# how long to wait for the peer\npeer_timeout: {v}s",
        "After how many seconds does the {c} stop waiting for its peer?",
        _numbers(14, 15, 17, 22, 25, 28, 33, 35, 45, 55),
    ),
    _Kind(
        "It listens on port {v} of every interface.",
        "DEFAULT_PORT = {v}",
        "# host and port\nlisten: 0.0.0.0:{v}",
        "Under which network port can one reach the {c}?",
        _numbers(7011, 7193, 7272, 8117, 8261, 8409, 8633, 9102, 9318, 9477),
    ),
    _Kind(
        "The {v} team maintains it; ask them before you change anything.",
        "# Maintained by the {v} team.",
        "maintained_by: team {v}",
        "Which team is responsible for the {c}?",
        ("Falcon", "Heron", "Kestrel", "Osprey", "Plover", "Swift", "Magpie", "Dunlin", "Wagtail"),
    ),
    _Kind(
        "All rows are kept in a {v} database.",
        '# The database that rows are kept in.\nSTORAGE_BACKEND = "{v}"',
        "database_engine: {v}",
        "What kind of database does the {c} store its data in?",
        ("PostgreSQL", "MariaDB", "Cassandra", "DynamoDB", "CockroachDB", "ScyllaDB", "Firebird"),
    ),
    _Kind(
        "Entries are written in batches of {v}.",
        "BATCH_SIZE = {v}  # written at once",
        "batch_size: {v}",
        "How large are the batches that the {c} works with?",
        _numbers(120, 144, 160, 180, 220, 240, 360, 480, 640, 720),
    ),
    _Kind(
        "What is finished is deleted after {v} days.",
        "# Finished work is deleted then.\nRETENTION_DAYS = {v}",
        "retention_days: {v}",
        "For how many days does the {c} retain finished work?",
        _numbers(16, 18, 19, 21, 27, 34, 41, 62, 75, 95),
    ),
    _Kind(
        "Messages are encoded as {v} before they go over the wire.",
        '# How messages are encoded on the wire.\nWIRE_FORMAT = "{v}"',
        "message_encoding: {v}",
        "What encoding do messages of the {c} have?",
        ("Avro", "Thrift", "MessagePack", "Protobuf", "CBOR", "BSON", "FlatBuffers"),
    ),
    _Kind(
        "Work arrives through a queue in {v}.",
        'QUEUE_BROKER = "{v}"',
        "queue_broker: {v}",
        "Which message broker holds the queue of the {c}?",
        ("RabbitMQ", "Kafka", "NATS", "ActiveMQ", "Pulsar", "Beanstalkd", "ZeroMQ"),
    ),
    _Kind(
        "It is deployed to the region {v} and nowhere else.",
        'DEPLOY_REGION = "{v}"',
        "deploy_region: {v}",
        "In which cloud region do we run the {c}?",
        ("eu-west-3", "us-east-2", "ap-south-1", "sa-east-1", "ca-west-1", "me-south-1"),
    ),
    _Kind(
        "Uploads above {v} MB are refused.",
        "MAX_UPLOAD_MEGABYTES = {v}",
        "max_upload_mb: {v}",
        "What is the largest upload that the {c} takes?",
        _numbers(23, 37, 42, 58, 63, 77, 88, 97, 130, 170),
    ),
    _Kind(
        "It starts every night at {v}.",
        'RUN_EVERY_NIGHT_AT = "{v}"',
        'nightly_run: "{v}"',
        "At what time of the night is the {c} started?",
        ("00:40", "01:25", "01:50", "02:15", "02:35", "03:05", "03:55", "04:20", "05:10"),
    ),
    _Kind(
        "A cached answer is used for {v} minutes.",
        "CACHE_MINUTES = {v}",
        "cache_minutes: {v}",
        "How old may something in the cache of the {c} become?",
        _numbers(6, 16, 18, 26, 36, 44, 52, 66, 84),
    ),
    _Kind(
        "Callers authenticate with {v}.",
        '# Callers have to prove who they are.\nAUTHENTICATION = "{v}"',
        "authentication: {v}",
        "How do clients log in, or authenticate themselves, to the {c}?",
        ("Kerberos", "OAuth2", "SAML", "LDAP", "HMAC", "mTLS", "WebAuthn"),
    ),
    _Kind(
        "{v} workers run side by side.",
        "WORKER_COUNT = {v}",
        "workers: {v}",
        "How many workers of the {c} are there in parallel?",
        _numbers(14, 15, 17, 18, 19, 21, 23, 26, 29, 31),
    ),
    _Kind(
        "Its log is written at the level {v}.",
        'LOG_LEVEL = "{v}"',
        "log_level: {v}",
        "How verbose is the logging of the {c}?",
        ("TRACE", "DEBUG", "NOTICE", "WARNING", "CRITICAL", "ALERT"),
    ),
)


class PlantedFact(NamedTuple):
    """A question, and where the answer to it stood from one commit on until another."""

    question: str
    path: str
    #: The line that answers it, with its comment.
    line: str
    #: Numbers of commits; the second is the first at which it is not so any more.
    since: int
    until: int


class GeneratedRepository(NamedTuple):
    """What was made. Commit ids by their numbers, the oldest first."""

    root: Path
    commits: list[str]
    facts: list[PlantedFact]
    #: Bytes of the files of the last commit.
    text_bytes: int
    files: int


class _File:
    def __init__(self, path: str, body: str) -> None:
        self.path, self.body = path, body
        #: Lines that tell facts, by their kind.
        self.lines: dict[int, str] = {}

    @property
    def text(self) -> bytes:
        if not self.lines:
            return self.body.encode()
        blocks = self.body.split("\n\n")
        for kind, line in self.lines.items():
            blocks.insert(1 + kind % len(blocks), line)
        return "\n\n".join(blocks).encode()


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pairs = [(noun, role) for noun in _NOUNS for role in _ROLES]
        self.random.shuffle(pairs)
        self._pairs = pairs

    def components(self, count: int) -> list[tuple[str, str]]:
        return self._pairs[:count]

    def sentence(self) -> str:
        pick = self.random.choice
        return pick(_SENTENCES).format(
            a=pick(_THINGS), b=pick(_THINGS), c=pick(_THINGS), v=pick(_VERBS), w=pick(_VERBS)
        )

    def name(self, parts: int = 2) -> str:
        pick = self.random.choice
        return "_".join((pick(_VERBS), *(pick(_THINGS) for _ in range(parts))))

    def function(self) -> str:
        pick = self.random.choice
        name, a, b, c = self.name(), pick(_THINGS), pick(_THINGS), pick(_THINGS)
        return (
            f"def {name}({a}, {b}_{c}=None):\n"
            f'    """{self.sentence()}"""\n'
            f"    {c} = {self.name(1)}({a}.{pick(_THINGS)}, {self.random.randrange(100)})\n"
            f"    if {c} is None or {b}_{c} == {a}:\n"
            f'        raise ValueError("the {pick(_THINGS)} cannot {pick(_VERBS)}")\n'
            f"    return {self.name(1)}({c})"
        )

    def code(self, component: tuple[str, str]) -> str:
        head = (
            f'"""{self.sentence()}"""\n\nfrom {component[0]}.{component[1]} import {self.name(1)}'
        )
        count = self.random.randrange(3, 10)
        return "\n\n".join((head, *(self.function() for _ in range(count)))) + "\n"

    def docs(self, component: tuple[str, str]) -> str:
        title = f"# {component[0].capitalize()} {component[1]}: {self.random.choice(_THINGS)}"
        blocks = [
            " ".join(self.sentence() for _ in range(self.random.randrange(2, 6)))
            for _ in range(self.random.randrange(3, 10))
        ]
        return "\n\n".join((title, *blocks)) + "\n"

    def settings(self, component: tuple[str, str]) -> str:
        blocks = [f"# Settings of the {component[0]} {component[1]}."]
        for _ in range(self.random.randrange(3, 7)):
            pick = self.random.choice
            lines = [f"{pick(_THINGS)}_{pick(_THINGS)}:"]
            lines += [
                f"  {pick(_THINGS)}_{pick(_THINGS)}: {self.random.randrange(1_000)}"
                for _ in range(self.random.randrange(2, 6))
            ]
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks) + "\n"

    def file(self, component: tuple[str, str], number: int) -> _File:
        noun, role = component
        thing, kind = self.random.choice(_THINGS), self.random.random()
        if kind < 0.55:
            return _File(f"src/{noun}/{role}/{thing}_{number}.py", self.code(component))
        if kind < 0.7:
            return _File(f"tests/{noun}/{role}/test_{thing}_{number}.py", self.code(component))
        if kind < 0.85:
            return _File(f"docs/{noun}/{role}-{thing}-{number}.md", self.docs(component))
        return _File(f"config/{noun}/{role}/{thing}-{number}.yaml", self.settings(component))


def _line(kind: int, value: str, path: str) -> str:
    form = _KINDS[kind]
    text = (
        form.docs if path.endswith(".md") else form.code if path.endswith(".py") else form.settings
    )
    return text.format(v=value)


def make_repository(
    root: Path, *, files: int = 60_000, commits: int = 5_000, facts: int = 400, seed: int = 20
) -> GeneratedRepository:
    """Make it at `root`, with a work tree. A quarter of the commits change what is asked for."""
    root.mkdir(parents=True)
    subprocess.run(("git", "init", "-q", "-b", "main", str(root)), check=True)
    for name, value in (("user.name", "Ann"), ("user.email", "ann@example.com"), ("gc.auto", "0")):
        subprocess.run(("git", "-C", str(root), "config", name, value), check=True)
    maker = _Maker(seed)
    components = maker.components(max(files // 150, 4))
    every = [maker.file(components[n % len(components)], n) for n in range(files)]
    planted = list[PlantedFact]()
    stream = _stream(maker, components, every, planted, commits=commits, facts=facts)
    marks = root.parent / f"{root.name}.marks"
    command = ("git", "-C", str(root), "-c", "core.compression=1", "fast-import", "--quiet")
    with subprocess.Popen((*command, f"--export-marks={marks}"), stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for piece in stream:
            process.stdin.write(piece)
        process.stdin.close()
    if process.returncode:
        raise RuntimeError("git fast-import failed")
    subprocess.run(("git", "-C", str(root), "reset", "-q", "--hard", "main"), check=True)
    ids = dict(line.split() for line in marks.read_text().splitlines())
    marks.unlink()
    return GeneratedRepository(
        root,
        [ids[f":{number + 1}"] for number in range(commits)],
        planted,
        sum(len(each.text) for each in every),
        files,
    )


def _stream(
    maker: _Maker,
    components: list[tuple[str, str]],
    every: list[_File],
    planted: list[PlantedFact],
    *,
    commits: int,
    facts: int,
) -> Iterator[bytes]:
    pick = maker.random
    told = list[tuple[int, int, str, int]]()  # file, kind, line, since
    slots = [(c, kind) for c in range(len(components)) for kind in range(len(_KINDS))]
    for component, kind in pick.sample(slots, min(facts, len(slots))):
        number = component + len(components) * pick.randrange(len(every) // len(components))
        line = _line(kind, pick.choice(_KINDS[kind].values), every[number].path)
        every[number].lines[kind] = line
        told.append((number, kind, line, 0))

    def end(at: int, until: int) -> None:
        number, kind, line, since = told[at]
        name = " ".join(components[number % len(components)])
        question = _KINDS[kind].question.format(c=name)
        planted.append(PlantedFact(question, every[number].path, line, since, until))

    for commit in range(commits):
        changed, gone = dict[int, None](), list[str]()
        if not commit:
            changed = dict.fromkeys(range(len(every)))
        elif told and pick.random() < 0.25:
            at = pick.randrange(len(told))
            number, kind, _, _ = told[at]
            end(at, commit)
            file = every[number]
            if pick.random() < 0.15:  # the file is renamed in the same commit
                gone.append(file.path)
                stem, _, suffix = file.path.rpartition(".")
                file.path = f"{stem}_{commit}.{suffix}"
            others = [
                v for v in _KINDS[kind].values if _line(kind, v, file.path) != file.lines[kind]
            ]
            line = file.lines[kind] = _line(kind, pick.choice(others), file.path)
            told[at] = number, kind, line, commit
            changed[number] = None
        for _ in range(pick.randrange(1, 4) if commit else 0):
            number = pick.randrange(len(every))
            blocks = every[number].body.rstrip("\n").split("\n\n")
            own = components[number % len(components)]
            new = maker.function() if every[number].path.endswith(".py") else maker.sentence()
            if every[number].path.endswith(".yaml"):
                new = maker.settings(own).split("\n\n")[1]
            blocks[pick.randrange(1, len(blocks))] = new
            every[number].body = "\n\n".join(blocks) + "\n"
            changed[number] = None
        yield (
            f"commit refs/heads/main\nmark :{commit + 1}\n"
            f"committer Ann <ann@example.com> {1_700_000_000 + commit * 600} +0000\n"
        ).encode() + _data(f"{maker.name().replace('_', ' ')}\n".encode())
        for path in gone:
            yield f"D {path}\n".encode()
        for number in changed:
            yield f"M 100644 inline {every[number].path}\n".encode() + _data(every[number].text)
    for at in range(len(told)):
        end(at, commits)


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)
