"""Secrets are masked, and nothing else is.

Every secret here is made while the tests run, so that none stands in the repository.
"""

from __future__ import annotations

import base64
import json
import random
import string
from pathlib import Path
from typing import Any

import pytest
import re2  # type: ignore[import-untyped]  # has no types
from hypothesis import given
from hypothesis import strategies as st

from perdure.config import SecretsConfig
from perdure.core.errors import InvalidConfig
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    Usage,
    assistant,
    event,
    user,
)
from perdure.history.secrets import Masked, Masker, masking_rules
from perdure.history.secrets.masking_rules import OWN, published
from perdure.history.secrets.secret_finder import usual_finder
from tests.growth import assert_linear
from tools import secret_rules

DATA = Path(__file__).parents[2].parent / "shared" / "data"
KEY = b"a key for the tags in these tests"


@pytest.fixture(scope="module")
def masker() -> Masker:
    return Masker(SecretsConfig(), key=KEY)


# ---- what must be found -------------------------------------------------------------------------

_dice = random.Random(20)
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def some(size: int, alphabet: str = ALNUM) -> str:
    return "".join(_dice.choice(alphabet) for _ in range(size))


def digits(size: int) -> str:
    return some(size, string.digits)


def pem(kind: str = "") -> str:
    lines = "\n".join(some(64, ALNUM + "+/") for _ in range(12))
    return f"-----BEGIN {kind}PRIVATE " + f"KEY-----\n{lines}\n-----END {kind}PRIVATE " + "KEY-----"


def jwt() -> str:
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": "1234567890", "iat": 1516239022})
    sealed = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join((*sealed, some(43)))


#: Secrets that are known by their form.
TOKENS = {
    "OpenAI, old": "sk-" + some(20) + "T3Blbk" + "FJ" + some(20),
    "OpenAI, project": "sk-" + "proj-" + some(74) + "T3Blbk" + "FJ" + some(74),
    "OpenAI, unmarked": "sk-" + some(48),
    "Anthropic": "sk-" + "ant-api03-" + some(93) + "AA",
    "Anthropic, admin": "sk-" + "ant-admin01-" + some(93) + "AA",
    "Anthropic, OAuth": "sk-" + "ant-oat01-" + some(93) + "AA",
    "OpenRouter": "sk-" + "or-v1-" + some(64, HEX),
    "DeepSeek": "sk-" + some(32, HEX),
    "Groq": "gsk" + "_" + some(52),
    "xAI": "xai" + "-" + some(80),
    "Perplexity": "pplx" + "-" + some(48),
    "Replicate": "r8" + "_" + some(37),
    "LangSmith": "lsv2" + "_pt_" + some(32, HEX) + "_" + some(10, HEX),
    "Hugging Face": "hf" + "_" + some(34, string.ascii_letters),
    "Google API": "AIza" + some(35),
    "Google OAuth": "GOCSPX" + "-" + some(28),
    "Google access": "ya29" + "." + some(120),
    "AWS": "AKIA" + some(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "GitHub": "ghp" + "_" + some(36),
    "GitHub, OAuth": "gho" + "_" + some(36),
    "GitHub, app": "ghs" + "_" + some(36),
    "GitHub, fine-grained": "github" + "_pat_" + some(22) + "_" + some(59),
    "GitLab": "glpat" + "-" + some(20),
    "Slack, bot": "xoxb" + "-" + digits(12) + "-" + digits(12) + "-" + some(24),
    "Slack, user": "xoxp" + "-" + "-".join(digits(12) for _ in "123") + "-" + some(32, HEX),
    "Slack, hook": f"https://hooks.slack.com/services/T{some(8)}/B{some(10)}/{some(24)}",
    "Stripe": "sk" + "_live_" + some(24),
    "Stripe, test": "sk" + "_test_" + some(24),
    "npm": "npm" + "_" + some(36),
    "PyPI": "pypi" + "-AgEIcHlwaS5vcmc" + some(90),
    "JWT": jwt(),
    "private key": pem(),
    "RSA key": pem("RSA "),
    "OpenSSH key": pem("OPENSSH "),
    "DigitalOcean": "dop" + "_v1_" + some(64, HEX),
    "SendGrid": "SG" + "." + some(22) + "." + some(43),
    "Telegram": digits(9) + ":AA" + some(33),
    "Databricks": "dapi" + some(32, HEX),
    "Vault": "hvs" + "." + some(90),
    "Shopify": "shpat" + "_" + some(32, HEX),
    "Linear": "lin" + "_api_" + some(40),
    "Notion": "ntn" + "_" + digits(11) + some(35),
    "Supabase": "sbp" + "_" + some(40, HEX),
    "Docker": "dckr" + "_pat_" + some(27),
    "Postman": "PMAK" + "-" + some(24, HEX) + "-" + some(34, HEX),
    "Grafana": "glsa" + "_" + some(32) + "_" + some(8, HEX),
    "age": "AGE-SECRET" + "-KEY-1" + some(58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"),
}
WORD = some(16)
BASIC = base64.b64encode(b"admin:Sup3rS3cretPw").decode()
#: Secrets that are known by their place: the text, and the secret in it.
PLACES = {
    "AWS secret": ("aws_secret_access_key = {}", some(40, ALNUM + "/+")),
    "AWS secret in a shell": ("export AWS_SECRET_ACCESS_KEY={}", some(40, ALNUM + "/+")),
    "session token": ("AWS_SESSION_TOKEN={}", some(300, ALNUM + "-_")),
    "API key in a shell": ("API_KEY={}", some(32)),
    "API key in code": ("client = Client(api_key='{}', retries=3)", some(32)),
    "API key in JSON": ('{{"apiKey": "{}", "debug": true}}', some(32)),
    "API key in YAML": ("api-key: {}", some(32)),
    "API key in a URL": ("https://api.service.io/v1?api_key={}&page=2", some(32)),
    "API key in a header": ("x-api-key: {}", some(32)),
    "Cloudflare": ("CLOUDFLARE_API_TOKEN={}", some(40)),
    "client secret": ("client_secret: '{}'", some(36)),
    "hexadecimal secret": ('secret_key = "{}"', some(64, HEX)),
    "Django's": ("SECRET_KEY = '{}'", some(40) + "!@#%^&*(-_=+)"),
    "Azure storage": ("AccountName=foo;AccountKey={};EndpointSuffix=core", some(86) + "=="),
    "bearer": ("Authorization: Bearer {}", some(40)),
    "bearer in curl": ("curl -H 'Authorization: Bearer {}' http://localhost", some(32)),
    "bearer in code": ('headers={{"Authorization": f"Bearer {}"}}', some(32)),
    "basic": ("Authorization: Basic {}", BASIC),
    "PostgreSQL": ("postgresql://user:{}@db.internal:5432/app", WORD),
    "weak PostgreSQL": ("postgres://app:{}@localhost/db", "hunter2"),
    "MongoDB": ("mongodb+srv://u:{}@cluster0.mongodb.net", some(16)),
    "Redis": ("redis://:{}@cache:6379/0", some(20)),
    "git over HTTPS": ("git clone https://bob:{}@git.host.io/a.git", some(14)),
    "SQL Server": ("Server=tcp:x;User ID=u;Password={};Encrypt=true", some(16)),
    "password": ("password={}", "x7K!q92Lm#zP"),
    "password in JSON": ('{{"user": "bob", "password": "{}"}}', "Tr0ub4dor&3"),
    "password in YAML": ("db_password: {}", some(20)),
    "password in an index": ('config["password"] = "{}"', "hunter2!x"),
    "PGPASSWORD": ("PGPASSWORD={} psql -h db", some(12)),
    "option": ("deploy --token {} --dry-run", some(24)),
    "option with =": ("deploy --api-key={}", some(24)),
    "curl -u": ("curl -s -u admin:{} https://host/x", some(12)),
    "netrc": ("machine api.host.io login bob password {}", some(20)),
    "mysql": ("mysql -u root -p{} db", some(14)),
    "sshpass": ("sshpass -p {} ssh host", some(12)),
    "Discord hook": ("https://discord.com/api/webhooks/" + digits(18) + "/{}", some(68)),
    "signed URL": ("https://b.s3.amazonaws.com/k?X-Amz-Signature={}", some(64, HEX)),
}


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize(
    "text",
    ["{}", "Use {} for this.", "KEY={}", "({}, 'x')", "a\n{}\nb", "<{}>", "see `{}`", "é{}é"[1:]],
)
def test_a_token_is_masked_wherever_it_stands(masker: Masker, name: str, text: str) -> None:
    masked, report = masker.text(text.format(TOKENS[name]))
    before, after = text.split("{}")
    assert masked.startswith(before + "[secret:")
    assert masked.endswith("]" + after)
    assert sum(found.count for found in report) == 1
    assert TOKENS[name][8:] not in masked


@pytest.mark.parametrize("name", PLACES)
def test_a_secret_is_known_by_its_place_and_nothing_else_is_masked(
    masker: Masker, name: str
) -> None:
    text, secret = PLACES[name]
    masked, report = masker.text(text.format(secret))
    before, after = (part.replace("{{", "{").replace("}}", "}") for part in text.split("{}"))
    assert masked.startswith(before + "[secret:")
    assert masked.endswith("]" + after)
    assert sum(found.count for found in report) == 1


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", [*TOKENS, *PLACES])
def test_json_in_text_hides_nothing(masker: Masker, name: str, depth: int) -> None:
    text, secret = PLACES.get(name, ("{}", TOKENS.get(name, "")))
    quoted = text.format(secret)
    for _ in range(depth):
        quoted = json.dumps({"n": 1, "output": f"done\n{quoted}\nexit 0"})
    masked, report = masker.text(quoted)
    assert report
    assert secret.split("\n")[-2 if "\n" in secret else 0] not in masked


@pytest.mark.parametrize(
    ("text", "size", "alphabet"),
    [
        ("aws_secret_access_key={}", 40, ALNUM + "+/"),
        ("API_KEY={}", 32, HEX),
        ('"api_key": "{}"', 24, string.ascii_lowercase + string.digits),
        ("sk-{}", 48, ALNUM),
        ("token: {}", 40, ALNUM + "-_"),
    ],
)
def test_few_random_values_look_like_names(
    masker: Masker, text: str, size: int, alphabet: str
) -> None:
    missed = sum(not masker.text(text.format(some(size, alphabet)))[1] for _ in range(200))
    assert missed <= 4


def test_a_private_key_that_was_cut_off_is_masked_as_far_as_it_goes(masker: Masker) -> None:
    cut = "\n".join(pem("RSA ").splitlines()[:5])
    masked, _ = masker.text(f"$ head -5 id_rsa\n{cut}\n$ ls\nid_rsa")
    assert masked.startswith("$ head -5 id_rsa\n[secret:private-key-cut:")
    assert masked.endswith("]\n$ ls\nid_rsa")


def test_several_secrets_in_one_text(masker: Masker) -> None:
    one, two = TOKENS["GitHub"], TOKENS["Anthropic"]
    masked, report = masker.text(f"{one},{two}\n{one}")
    assert [part.split(":")[1] for part in masked.replace("\n", ",").split(",")] == [
        "github-pat",
        "anthropic-api-key",
        "github-pat",
    ]
    assert report == [Masked("github-pat", "", 2), Masked("anthropic-api-key", "", 1)]


# ---- what must stay -----------------------------------------------------------------------------

SHA1, SHA256 = some(40, HEX), some(64, HEX)
UUID = "550e8400-e29b-41d4-a716-446655440000"
IMAGE = base64.b64encode(random.Random(1).randbytes(200_000)).decode()
HARMLESS = [
    f"commit {SHA1}",
    f"key: {SHA1}",
    f"cache_key = '{SHA256}'",
    f"sha256:{SHA256}",
    f'"resolved": "https://registry/a.tgz#{SHA1}", "integrity": "sha512-{some(86)}=="',
    f"session {UUID}",
    f'"key": "{UUID}"',
    f'"token_id": "{UUID}"',
    f"data:image/png;base64,{IMAGE}",
    IMAGE,
    "\n".join(IMAGE[n : n + 76] for n in range(0, 50_000, 76)),
    base64.urlsafe_b64encode(random.Random(2).randbytes(200_000)).decode(),
    "api_key=<your-key>",
    "OPENAI_API_KEY=sk-...",
    "OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "export API_KEY=your_api_key_here_1234567890",
    'api_key = "example-key-1a2b3c4d5e6f7g8h"',
    "AKIA" + "IOSFODNN7EXAMPLE",
    "password=${DB_PASSWORD1}",
    "password: $DB_PASSWORD_1",
    'password = os.environ["DB_PASSWORD_1"]',
    'token = os.environ.get("SERVICE_TOKEN_V2")',
    "apiKey: process.env.SERVICE_KEY_V2,",
    "api_key=args.api_key, base_url=args.base_url",
    "self.api_key = api_key2",
    "token = await self.fetch_token_v2(user_id1)",
    "password: [REDACTED]",
    'password="[REDACTED:password1]"',
    "password: ********",
    "postgresql://user:${PASSWORD}@host/db",
    "postgresql://USER:PASS@HOST/DATABASE",
    "postgresql://user:<password>@host/db",
    "ecto://{user}:{password}@{host}",
    "git@github.com:owner/repo.git",
    "http://localhost:8080/@scope/package",
    "Authorization: Bearer <token>",
    "Authorization: Bearer $TOKEN",
    "Authorization: Bearer authentication",
    "bearer of good news about authentication",
    "sk-estimator-doc-link, sk-toggleable__content-label",
    "the task-based-approach-to-scheduling",
    "tests/history/test_secrets.py::test_token_is_masked_2",
    "test_password_reset_flow_v2: passed",
    "PASS: test_case_3_of_12",
    "pwd=/home/me/project2/src",
    "root:x:0:0:root:/root:/bin/bash",
    "def password(self, value2: str) -> None:",
    '"password": "string"',
    'type="password" id="password1" name="password1"',
    "max_tokens=4096, total_tokens: 1234567890123",
    "token_count=12345678901234567890",
    'data-key="item-12-of-2024-03-01"',
    "primary_key=True, foreign_key='users.id_2024'",
    "keyboard: qwerty1234567",
    'line.thread_key == "unmatched-result-2"',
    "keys: `monitor.progress_25`",
    'key={"user1234567890"}',
    "KEY_PATTERN = re.compile(r'-----BEGIN (RSA )?PRIVATE KEY-----')",
    'MARKS = ("-----BEGIN PRIVATE ' + 'KEY-----", "-----END PRIVATE ' + 'KEY-----") * 2',
    "-----BEGIN CERTIFICATE-----\n" + some(64) + "\n-----END CERTIFICATE-----",
    "ssh-rsa AAAAB3NzaC1yc2E" + some(300) + " me@host",
    "/usr/lib/python3.11/site-packages/token_1234/secret_5678.py",
    "page_token=" + some(24),
    '"prompt_cache_key": "' + some(32) + '"',
    "csrf_token=" + some(32),
    "discord_channel_id = 123456789012345678",
    f"sourcegraph at {SHA1}",
    "",
    "\x00",
    "\\",
    "no secrets here, only words about passwords, keys and tokens: they are kept.",
]


@pytest.mark.parametrize("text", HARMLESS, ids=lambda text: text[:40])
def test_what_is_no_secret_stays(masker: Masker, text: str) -> None:
    masked, report = masker.text(text)
    assert masked is text, report
    assert report == []


@pytest.mark.skipif(not DATA.exists(), reason="needs the transcripts beside the project")
def test_real_transcripts_hold_no_secrets(masker: Masker) -> None:
    """They were published; whatever is found in them would be a mistake."""
    read = 0
    found: list[Masked] = []
    for file in [*DATA.glob("claude_code/**/*.jsonl"), *DATA.glob("codex/*.jsonl")]:
        for line in file.read_text("utf-8").splitlines():
            if '"progress"' not in line[:200]:
                found += masker.messages((Message("event", (Unknown("x", json.loads(line)),)),))[1]
                read += 1
    assert read > 1_000
    assert found == []


# ---- masks --------------------------------------------------------------------------------------


def test_masks_name_the_rule_and_tell_equal_secrets_from_others(masker: Masker) -> None:
    one, two = ("ghp" + "_" + some(36) for _ in "12")
    masked, _ = masker.text(f"{one} {two} {one}")
    first, second, third = masked.split()
    assert first == third != second
    assert len(first) == len("[secret:github-pat:0000]")


def test_tags_depend_on_a_key(masker: Masker) -> None:
    secret = TOKENS["Anthropic"]
    assert masker.text(secret) == Masker(SecretsConfig(), key=KEY).text(secret)
    assert len({Masker(SecretsConfig()).text(secret)[0] for _ in range(8)}) > 1


def test_a_private_key_has_one_tag_however_it_is_written(masker: Masker) -> None:
    key = pem()
    assert masker.text(key)[0] == masker.text(json.dumps(key))[0].strip('"')


@pytest.mark.parametrize("name", ["password", "PostgreSQL", "client secret", "option"])
def test_what_could_be_guessed_has_no_tag(masker: Masker, name: str) -> None:
    text, secret = PLACES[name]
    _, _, mask = masker.text(text.format(secret))[0].partition("[secret:")
    assert ":" not in mask.partition("]")[0]


def test_a_mask_of_a_made_up_rule_protects_nothing(masker: Masker) -> None:
    masked, report = masker.text(f'password="[secret:{"a1b2c3"}]" and [secret:{TOKENS["GitHub"]}]')
    assert TOKENS["GitHub"] not in masked
    assert report


# ---- settings -----------------------------------------------------------------------------------


def test_masking_can_be_switched_off() -> None:
    masker = Masker(SecretsConfig(mask=False))
    message = user(TOKENS["GitHub"])
    assert masker.text(TOKENS["GitHub"]) == (TOKENS["GitHub"], [])
    assert masker.messages((message,)) == ((message,), [])


def test_values_and_expressions_can_be_allowed() -> None:
    one, two, three = ("ghp" + "_" + some(36) for _ in "123")
    masker = Masker(SecretsConfig(allow=(one, f"/{two[-6:]}$/")))
    masked, report = masker.text(f"{one} {two} {three}")
    assert masked.startswith(f"{one} {two} [secret:")
    assert len(report) == 1


def test_rules_can_be_switched_off_and_added() -> None:
    secret = "acme" + "-" + some(8, HEX)
    rules = {"acme-key": r"acme-[0-9a-f]{8}", "name": r"«(é+)»"}
    masker = Masker(SecretsConfig(off=("jwt",), rules=rules))
    assert masker.text(TOKENS["JWT"])[0] == TOKENS["JWT"]
    assert masker.text(f"use {secret}.")[0] == "use [secret:acme-key]."
    assert masker.text("«éé» «e»")[0] == "«[secret:name]» «e»"
    assert masker.messages((user(secret),))[0][0].text == "[secret:acme-key]"


@pytest.mark.parametrize(
    "settings",
    [
        SecretsConfig(rules={"mine": r"(?<=hunter)2"}),
        SecretsConfig(rules={"mine": r"hunter2("}),
        SecretsConfig(rules={"Mine!": "hunter2"}),
        SecretsConfig(rules={"jwt": "hunter2"}),
        SecretsConfig(allow=("/hunter2(/",)),
        SecretsConfig(off=("no-such-rule",)),
    ],
)
def test_settings_that_cannot_work_are_refused_without_showing_them(
    settings: SecretsConfig,
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        Masker(settings)
    assert "hunter2" not in str(caught.value)
    assert caught.value.hint


def test_without_the_published_rules_there_is_no_masker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "published.json"
    monkeypatch.setattr(masking_rules, "FILE", file)
    with pytest.raises(InvalidConfig, match="not installed"):
        Masker(SecretsConfig())
    file.write_bytes(b'{"source": "x", "rules": [{"id": 1}]}')
    published.cache_clear()
    usual_finder.cache_clear()
    with pytest.raises(InvalidConfig, match="cannot be read"):
        Masker(SecretsConfig()).text("hello")
    monkeypatch.undo()
    published.cache_clear()


# ---- rules --------------------------------------------------------------------------------------


def test_the_file_of_published_rules_is_what_the_installed_package_gives() -> None:
    """When this fails, run `python -m tools.secret_rules` and review what changed."""
    found = secret_rules.adapted()
    assert published() == found
    assert masking_rules.FILE.read_bytes() == secret_rules.written(found)


def test_the_published_rules_are_what_we_take_them_for() -> None:
    """Fails when a new release of them is written differently, and the tool must follow."""
    known, everywhere = published().rules, published().everywhere
    kinds = [rule.kind for rule in known]
    assert kinds.count("token") > 100
    assert kinds.count("vendor") > 70
    assert (kinds.count("assigned"), kinds.count("block")) == (1, 1)
    assert everywhere.regexes
    assert not any(r"[\x60'\"\s;]|\\[nr]|$" in rule.regex for rule in known)
    assert not secret_rules.LEFT_OUT.keys() & {rule.id for rule in known}
    ids = [rule.id for rule in (*known, *OWN)]
    assert len(ids) == len(set(ids))
    for rule in (*known, *OWN):
        for regex in (rule.regex, rule.gate, *(r for e in rule.exemptions for r in e.regexes)):
            assert re2.compile(regex)


def test_a_gate_is_open_wherever_its_rule_finds_something() -> None:
    texts = [*TOKENS.values(), *(text.format(secret) for text, secret in PLACES.values())]
    vendors = ("heroku", "linear", "okta", "sentry", "datadog", "snyk_api", "telegram", "lob")
    values = (
        some(32, HEX),
        some(40),
        some(64, HEX),
        UUID,
        "00" + some(40),
        f"test_{some(35, HEX)}",
    )
    for vendor in vendors:
        texts += [
            f"{vendor}{sign}{value}"
            for sign in ("_key = '", "-token: ", '::="')
            for value in values
        ]
    texts += [quoted for text in texts for quoted in (f"x\n{text}\n", json.dumps(f"\n\t{text}\n"))]
    probes = [text.replace("\\", " ") for text in texts]
    opened = 0
    for rule in (*published().rules, *OWN):
        regex, gate = re2.compile(rule.regex), re2.compile(rule.gate)
        lead = re2.compile(rule.lead)
        for probe in probes:
            if regex.search(probe):
                opened += 1
                assert gate.search(probe), (rule.id, probe)
            if gate.search(probe):
                assert lead.search(probe), (rule.id, probe)
    assert opened > 300


def test_every_vendor_is_found_by_a_masker_that_has_not_seen_one_before() -> None:
    """Their gates are compiled when a text first has the name of one."""
    vendors = [rule for rule in published().rules if rule.kind == "vendor" and rule.lead]
    assert len(vendors) > 70
    for text in (f"heroku_api_key = '{UUID}'", f"datadog-token: {some(40)}"):
        fresh, seasoned = Masker(SecretsConfig(), key=KEY), Masker(SecretsConfig(), key=KEY)
        seasoned.text("okta_token = '12345678'")
        masked = fresh.text(text)
        assert masked[1]
        assert masked == seasoned.text(text)


# ---- messages -----------------------------------------------------------------------------------

SECRET = TOKENS["GitHub"]
MASK = "[secret:github-pat:"


def everything(text: str, **kept: str) -> tuple[Message, ...]:
    """Messages with `text` wherever text can be."""
    native = {"chat": {"note": text, "deep": [{"x": [text, 1]}], "id": kept.get("id", "")}}
    head = ArtifactPointer("sha256:0", 1, filename=text, head=text, native=native)
    return (
        Message("user", (Text(text, native), head, Media("image/png", url=text, filename=text))),
        Message(
            "assistant",
            (
                Reasoning(text, (text, "x"), encrypted=kept.get("id"), native=native),
                ToolCall("c", "run", json.dumps({"a": [text], text: 1}), native=native),
                ToolCall("d", "run", reference=head),
            ),
            usage=Usage(1, native={"note": text}),
            native=native,
        ),
        Message(
            "tool",
            (ToolResult("c", (Text(text), head, Media(url=text), Unknown("x", [text])), name="n"),),
        ),
        Message("assistant", (Unknown("responses", {"y": {text: text}}),)),
        event("compacted", text, summary=text),
    )


def test_every_text_in_a_message_is_covered(masker: Masker) -> None:
    messages = everything(f"see {SECRET}!")
    masked, report = masker.messages(messages)
    assert SECRET not in repr(masked)
    assert MASK in masked[0].text
    assert {
        "[0].parts[0].text",
        "[0].parts[1].head",
        "[0].parts[2].url",
        "[1].parts[0].summary[0]",
        "[1].parts[1].arguments",
        "[1].usage.native",
        "[2].parts[0].content[3].data",
        "[4].native",
    } <= {found.where for found in report}
    assert repr(messages).count(SECRET) == sum(found.count for found in report)
    assert masker.messages(masked) == (masked, [])
    assert masker.messages(masked)[0] is masked


def test_messages_without_secrets_are_the_very_same(masker: Masker) -> None:
    messages = (*everything("a key"), *everything("password: str"))
    masked, report = masker.messages(messages)
    assert masked is messages
    assert report == []


def test_parts_without_secrets_are_the_very_same(masker: Masker) -> None:
    messages = (user("hello"), Message("assistant", (Text("a"), Text(SECRET))))
    masked, _ = masker.messages(messages)
    assert masked[0] is messages[0]
    assert masked[1].parts[0] is messages[1].parts[0]


def test_ids_and_what_only_the_provider_reads_stay(masker: Masker) -> None:
    native = {"messages": {"id": SECRET, "signature": SECRET, "encrypted_content": SECRET}}
    message = Message(
        "assistant",
        (
            Reasoning("plain", signature=SECRET, encrypted=SECRET, native=native),
            ToolCall(SECRET, "run", "{}"),
            Media("image/png", data=SECRET.encode()),
            Media(url="data:image/png;base64," + SECRET),
        ),
        id=SECRET,
    )
    assert masker.messages((message,)) == ((message,), [])


def test_a_signature_is_void_when_its_text_changed(masker: Masker) -> None:
    kept = Reasoning("plain", (SECRET,), signature="s")
    lost = Reasoning(SECRET, signature="s", encrypted="e")
    masked, _ = masker.messages((Message("assistant", (kept, lost)),))
    first, second = masked[0].parts
    assert isinstance(first, Reasoning)
    assert isinstance(second, Reasoning)
    assert first.signature == "s"
    assert first.summary[0].startswith(MASK)
    assert second.signature is None
    assert second.encrypted == "e"


def call(arguments: str) -> tuple[Message, ...]:
    return (Message("assistant", (ToolCall("c", "run", arguments),)),)


def arguments_of(messages: tuple[Message, ...]) -> str:
    return messages[0].calls[0].arguments


def test_arguments_stay_as_they_were_written_but_for_the_secret(masker: Masker) -> None:
    written = '{ "b":1.50,\n "env" : {"API_KEY": "%s"} , "é\\u00e9":"\\/" }'
    masked, _ = masker.messages(call(written % some(32)))
    assert arguments_of(masked) == written % "[secret:generic-api-key]"


def test_escapes_in_arguments_hide_nothing(masker: Masker) -> None:
    key = pem()
    split = "".join(f"\\u{ord(char):04x}" for char in SECRET)
    arguments = json.dumps({"file_path": "id_rsa", "content": key})[:-1] + f', "t": "{split}"}}'
    masked, report = masker.messages(call(arguments))
    assert {found.rule for found in report} == {"private-key", "github-pat"}
    assert json.loads(arguments_of(masked))["content"].startswith("[secret:private-key:")


def test_an_argument_list_is_read_as_a_command(masker: Masker) -> None:
    masked, _ = masker.messages(call(json.dumps({"command": ["x", "--token", some(24), "y"]})))
    assert json.loads(arguments_of(masked))["command"] == [
        "x",
        "--token",
        "[secret:option-secret]",
        "y",
    ]


def test_arguments_that_are_no_json_are_text(masker: Masker) -> None:
    masked, _ = masker.messages(call('{"key": "' + SECRET))
    assert arguments_of(masked).startswith('{"key": "' + MASK)


def test_keys_that_were_secrets_stay_apart(masker: Masker) -> None:
    data = {f"x password={'a' + some(10) + '1'}": n for n in range(3)}
    masked, _ = masker.messages((Message("event", (Unknown("x", data),)),))
    (part,) = masked[0].parts
    assert isinstance(part, Unknown)
    assert list(part.data.values()) == [0, 1, 2]


def test_no_report_holds_a_secret(masker: Masker) -> None:
    for text, secret in PLACES.values():
        assert secret not in repr(masker.messages((assistant(text.format(secret)),))[1])
    for secret in TOKENS.values():
        assert secret not in repr(masker.messages((assistant(secret),))[1])


# ---- whatever the text is -----------------------------------------------------------------------

_fragments = st.sampled_from(
    [
        *TOKENS.values(),
        *(text.format(secret) for text, secret in PLACES.values()),
        *(text[:200] for text in HARMLESS),
        *("password=", "key: ", "secret", "[secret:jwt]", "[secret:", "\\n", '\\"', "\\", '"', "'"),
        *(
            "://",
            ":",
            "@",
            "--token ",
            "-----BEGIN PRIVATE KEY-----",
            "é",
            "\ud800",
            "\n",
            " ",
            "=",
        ),
    ]
)
_anything = st.characters(exclude_categories=[])
_texts = st.lists(_fragments | st.text(_anything, max_size=12), max_size=12).map("".join)


@pytest.mark.repeated
@given(_texts)
def test_any_text_can_be_masked_and_a_second_time_changes_nothing(
    masker: Masker, text: str
) -> None:
    masked, report = masker.text(text)
    assert bool(report) == (masked != text)
    assert masker.text(masked) == (masked, [])
    for secret in TOKENS.values():
        # What stands before or behind it without a gap makes another word of it.
        assert f" {secret} " not in masked


@pytest.mark.repeated
@given(st.lists(_texts, max_size=6))
def test_texts_that_are_searched_together_are_masked_as_each_would_be_alone(
    masker: Masker, texts: list[str]
) -> None:
    masked, _ = masker.messages(tuple(user(text) for text in texts))
    assert [message.text for message in masked] == [masker.text(text)[0] for text in texts]


_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=12,
)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [shape(item) for item in value.values()]
    if isinstance(value, list):
        return [list, *map(shape, value)]
    return "text" if isinstance(value, str) else repr(value)


@pytest.mark.repeated
@given(_data, st.booleans(), st.sampled_from([None, 2]))
def test_arguments_stay_json_of_the_same_shape(
    masker: Masker, data: Any, ascii_only: bool, indent: int | None
) -> None:
    arguments = json.dumps(data, ensure_ascii=ascii_only, indent=indent)
    masked, report = masker.messages(call(arguments))
    after = json.loads(arguments_of(masked), object_pairs_hook=list)
    assert pairs(after) == pairs(json.loads(arguments, object_pairs_hook=list))
    assert bool(report) == (masked != call(arguments))
    assert masker.messages(masked)[0] == masked


def pairs(value: Any) -> Any:
    """The shape of what `json.loads` made with its pairs as lists: keys may become equal."""
    if isinstance(value, list):
        return [pairs(item) for item in value]
    if isinstance(value, tuple):
        return (pairs(value[1]),)
    return shape(value)


@pytest.mark.repeated
@given(_data)
def test_plain_data_keeps_its_shape(masker: Masker, data: Any) -> None:
    messages = (Message("event", (Unknown("x", data),), native={"event": {"data": data}}),)
    masked, report = masker.messages(messages)
    (part,) = masked[0].parts
    assert isinstance(part, Unknown)
    assert shape(part.data) == shape(data)
    assert (masked is messages) == (not report)
    assert masker.messages(masked)[1] == []


HOSTILE = [
    *("a", "-----BEGIN", "-----BEGIN PRIVATE KEY-----", "sk-", "key=", "password=", 'api_key="'),
    *(
        "a://b:c",
        "http://x:y@",
        "curl -u a:",
        "curl \n",
        "Authorization: Bearer ",
        "\\",
        "\\n",
        '"',
    ),
    *('password="[secret:jwt]" ', "login a password ", "discord = ", "_", "ghp_", "😀", "\ud800"),
    *("key secret token pass auth api : = > , ", "eyJhbGciOiJIUzI1NiJ9.", "mysql ", "[secret:"),
    "-----BEGIN PRIVATE KEY-----\n" + "QWJj" * 20 + "\n",
    "api_key=" + some(20) + " ",
]


@pytest.mark.parametrize("unit", HOSTILE, ids=lambda unit: repr(unit)[:24])
def test_work_grows_with_the_text_and_no_faster(masker: Masker, unit: str) -> None:
    small = unit * (12_500 // len(unit))
    assert_linear(masker.text, small, small * 8)
