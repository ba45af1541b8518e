from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import (
    GatewayError,
    PromptTooLong,
    ProviderDown,
    RateLimited,
    Rejected,
    Unauthorized,
)
from perdure.gateway.provider_errors import MAX_WORDS, from_event, from_response, retry_after
from perdure.gateway.rate_limits import span

WHERE = "openai/gpt-5"


def read(
    status: int, body: Any = b"", headers: dict[str, str] | None = None, *, where: str = WHERE
) -> GatewayError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return from_response(status, headers or {}, raw, where=where, now=1_700_000_000.0)


def openai(message: str, type: str = "invalid_request_error", code: str | None = None) -> Any:
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


def anthropic(message: str, type: str) -> Any:
    return {"type": "error", "error": {"type": type, "message": message}, "request_id": "req_1"}


def cloudflare(code: int, message: str) -> Any:
    return {
        "success": False,
        "result": None,
        "messages": [],
        "errors": [{"code": code, "message": message}],
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, Rejected),
        (307, Rejected),
        (400, Rejected),
        (401, Unauthorized),
        (402, Rejected),
        (403, Unauthorized),
        (404, Rejected),
        (405, Rejected),
        (408, ProviderDown),
        (409, ProviderDown),
        (413, PromptTooLong),
        (422, Rejected),
        (425, ProviderDown),
        (429, RateLimited),
        (500, ProviderDown),
        (502, ProviderDown),
        (503, ProviderDown),
        (504, ProviderDown),
        (520, ProviderDown),
        (529, ProviderDown),
    ],
)
@pytest.mark.parametrize("body", [b"", b"{", b"<html><title>Oops</title>", b"\xff\x00", b"[]"])
def test_a_status_decides_when_the_body_says_nothing(
    status: int, kind: type[GatewayError], body: bytes
) -> None:
    error = read(status, body)
    assert type(error) is kind
    assert WHERE in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        # OpenAI
        (401, openai("Incorrect API key provided: sk-a***b", code="invalid_api_key"), Unauthorized),
        (429, openai("Rate limit reached for gpt-5", "tokens", "rate_limit_exceeded"), RateLimited),
        (
            429,
            openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
            Rejected,
        ),
        (
            429,
            openai(
                "Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 50000",
                "tokens",
                "rate_limit_exceeded",
            ),
            PromptTooLong,
        ),
        (404, openai("The model `x` does not exist", code="model_not_found"), Rejected),
        (400, openai("Too long.", code="context_length_exceeded"), PromptTooLong),
        (400, openai("max_tokens is too large: 99. At most 4096 completion tokens"), Rejected),
        # Anthropic
        (
            400,
            anthropic("prompt is too long: 208310 tokens > 200000", "invalid_request_error"),
            PromptTooLong,
        ),
        (
            400,
            anthropic(
                "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
                "invalid_request_error",
            ),
            PromptTooLong,
        ),
        (
            400,
            anthropic("Your credit balance is too low to access", "invalid_request_error"),
            Rejected,
        ),
        (413, anthropic("Request exceeds the maximum size", "request_too_large"), PromptTooLong),
        (529, anthropic("Overloaded", "overloaded_error"), ProviderDown),
        (403, anthropic("Not allowed", "permission_error"), Unauthorized),
        # Hugging Face
        (
            422,
            {
                "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be"
                " <= 4096. Given: 5000 `inputs` tokens",
                "error_type": "validation",
            },
            PromptTooLong,
        ),
        (429, {"error": "Model is overloaded", "error_type": "overloaded"}, RateLimited),
        (503, {"error": "Model x is currently loading", "estimated_time": 20.0}, ProviderDown),
        (402, {"error": "You have exceeded your monthly included credits"}, Rejected),
        (424, {"error": "Request failed during generation"}, ProviderDown),
        # Cloudflare
        (400, cloudflare(10000, "Authentication error"), Unauthorized),
        (400, cloudflare(5007, "No such model @cf/x"), Rejected),
        (429, cloudflare(3036, "you have used up your daily free allocation"), Rejected),
        (429, cloudflare(3040, "Capacity temporarily exceeded, please try again."), RateLimited),
        (
            400,
            cloudflare(5021, "tokens (9000) exceeded this model context window limit (8192)."),
            PromptTooLong,
        ),
        # Ollama
        (404, {"error": "model 'x' not found, try pulling it first"}, Rejected),
        (400, {"error": "input length exceeds maximum context length"}, PromptTooLong),
        # vLLM, llama.cpp, OpenRouter, Google, Mistral, FastAPI
        (
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 4096 tokens. However, you"
                " requested 5000",
                "type": "BadRequestError",
                "code": 400,
            },
            PromptTooLong,
        ),
        (
            500,
            openai("the request exceeds the available context size", "exceed_context_size_error"),
            PromptTooLong,
        ),
        (503, {"error": {"code": 503, "message": "Loading model"}}, ProviderDown),
        (402, {"error": {"code": 402, "message": "Insufficient credits"}}, Rejected),
        (
            400,
            [{"error": {"message": "The input token count (5) exceeds the maximum number"}}],
            PromptTooLong,
        ),
        (
            422,
            {"object": "error", "message": {"detail": [{"msg": "Field required"}]}},
            Rejected,
        ),
    ],
)
def test_the_providers_own_words_decide(status: int, body: Any, kind: type[GatewayError]) -> None:
    assert type(read(status, body)) is kind


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (openai("Wrong model."), "Wrong model."),
        (anthropic("Wrong model.", "api_error"), "Wrong model."),
        (cloudflare(1, "Wrong model."), "Wrong model."),
        ({"error": "Wrong model."}, "Wrong model."),
        ({"message": "Wrong model."}, "Wrong model."),
        ({"detail": "Wrong model."}, "Wrong model."),
        ({"detail": [{"loc": ["body"], "msg": "Wrong model."}]}, "Wrong model."),
        ({"object": "error", "message": {"detail": [{"msg": "Wrong model."}]}}, "Wrong model."),
        (b"Wrong model.", "Wrong model."),
        (b"<html><head><title>502 Bad\nGateway</title>", "502 Bad Gateway"),
    ],
)
def test_the_providers_own_words_are_shown(body: Any, words: str) -> None:
    assert words in read(500, body).message


def test_words_are_short_and_on_one_line_without_control_characters() -> None:
    error = read(400, openai("no\n\n\x1b[31m" + "long words " * 500))
    words = error.message.split("): ", 1)[1]
    assert len(words) <= MAX_WORDS
    assert words.startswith("no [31mlong words long")
    assert words.endswith("…")
    assert error.message.isprintable()


@pytest.mark.parametrize(
    "secret", ["sk-ant-api03-abcdefghijklmnop", "hf_abcdefghijklmnopqrst", "Bearer abcdefgh1234"]
)
def test_what_looks_like_a_key_is_not_shown(secret: str) -> None:
    error = read(401, openai(f"The key {secret} is wrong."))
    assert secret not in str(error)
    assert "[key]" in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e300"}, None),
        ({"retry-after-ms": "250"}, 0.25),
        ({"Retry-After-Ms": "250", "Retry-After": "1"}, 0.25),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:10 GMT"}, 0.0),
        ({"retry-after": "Tue, 99 Nov 2023 22:13:10 GMT"}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=1_700_000_000.0) == seconds
    for status in (429, 503):
        error = read(status, b"", headers)
        assert isinstance(error, RateLimited | ProviderDown)
        assert error.retry_after == seconds


def test_how_long_to_wait_may_stand_in_the_words() -> None:
    limited = openai("Rate limit reached. Please try again in 1m3.5s. Visit …", "tokens")
    loading = {"error": "loading", "estimated_time": 20}
    for status, body, seconds in ((429, limited, 63.5), (503, loading, 20.0)):
        error = read(status, body)
        assert isinstance(error, RateLimited | ProviderDown)
        assert error.retry_after == seconds
    error = read(429, limited, {"retry-after": "2"})
    assert isinstance(error, RateLimited)
    assert error.retry_after == 2.0  # headers are meant for us


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("17ms", 0.017),
        ("6m0s", 360),
        ("1h2m3.5s", 3723.5),
        ("", None),
        ("5", None),
        ("1.2.3s", None),
    ],
)
def test_spans(text: str, seconds: float | None) -> None:
    assert span(text) == seconds


def test_a_redirect_names_its_target() -> None:
    error = read(308, b"", {"location": "https://elsewhere.example/v1"})
    assert "https://elsewhere.example/v1" in error.message
    assert "base_url" in error.hint


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, ProviderDown),
        (anthropic("Overloaded", "overloaded_error"), ProviderDown),
        (anthropic("Slow down", "rate_limit_error"), RateLimited),
        (anthropic("x", "invalid_request_error"), Rejected),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "x"}, RateLimited),
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
            ProviderDown,
        ),
        ({"code": "context_length_exceeded", "message": "x"}, PromptTooLong),
        ({"code": 402, "message": "Insufficient credits"}, Rejected),
        ({"code": "401", "message": "No"}, Unauthorized),
        ({"code": 502, "message": "Upstream"}, ProviderDown),
        (cloudflare(10000, "Authentication error"), Unauthorized),
        ({"message": "something"}, ProviderDown),
        ("something", ProviderDown),
        ({}, ProviderDown),
        (None, ProviderDown),
        (openai("quota", "insufficient_quota"), Rejected),
    ],
)
def test_error_objects_without_a_status(event: Any, kind: type[GatewayError]) -> None:
    error = from_event(event, where=WHERE)
    assert type(error) is kind
    assert WHERE in error.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "errors", "message", "detail", "code", "type", "estimated_time"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.integers(100, 999), json_values | st.binary(max_size=200), st.text(max_size=20))
def test_no_answer_is_too_strange(status: int, body: Any, header: str) -> None:
    error = read(status, body, {"retry-after": header})
    assert error.message.isprintable()
    assert len(error.message) < MAX_WORDS + 250
    assert from_event(body, where=WHERE).hint


def test_depth_is_no_danger() -> None:
    assert type(read(500, b'{"error":' * 20_000)) is ProviderDown
    deep: dict = {}
    for _ in range(10_000):
        deep = {"error": deep}
    assert type(from_event(deep, where=WHERE)) is ProviderDown
