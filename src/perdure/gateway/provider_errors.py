"""A provider's error answer as a `GatewayError`.

The status decides, unless the provider's own words are more exact: some call a prompt that is too
long a server error, and an account without money is "too many requests". In a stream or a body with
status 200, the provider's names for errors stand for the status (`_STATUS_OF`).
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core.errors import (
    BadAnswer,
    GatewayError,
    PromptTooLong,
    ProviderDown,
    RateLimited,
    Rejected,
    Unauthorized,
)
from perdure.gateway.calls import Headers
from perdure.gateway.rate_limits import read, span

if TYPE_CHECKING:
    import httpx2

#: Characters of the provider's own words that are shown.
MAX_WORDS = 300
#: Characters of a body that are read: explanations come first.
_MAX_BODY = 65_536

#: Names of errors, in any field, and the status that they amount to: of OpenAI, Anthropic, Hugging
#: Face, llama.cpp, vLLM, Cloudflare Workers AI.
_STATUS_OF = {
    name: status
    for status, names in {
        400: "invalid_prompt content_filter invalid_request_error badrequesterror",
        401: "invalid_api_key authentication_error 10000",
        402: "insufficient_quota billing_hard_limit_reached billing_not_active billing_error 3036",
        403: "permission_error",
        404: "model_not_found not_found_error notfounderror 5007",
        413: "context_length_exceeded string_above_max_length request_too_large"
        " exceed_context_size_error 3006",
        422: "validation",
        429: "rate_limit_exceeded tokens requests too_many_requests rate_limit_error"
        " overloaded 3040",
        500: "server_error internal_server_error api_error generation incomplete_generation"
        " internalservererror",
        503: "service_unavailable unavailable_error",
        504: "timeout_error",
        529: "overloaded_error",
    }.items()
    for name in names.split()
}

_too_long = re.compile(
    r"context[ _](?:length|window|size|limit)"
    r"|(?:prompt|input|message|request|conversation)s? (?:is|are|was) too (?:long|large)"
    r"|too many (?:input )?tokens"
    r"|maximum (?:number of tokens|prompt length|input length|allowed length)"
    r"|input (?:token count|length) (?:\S+ )?exceeds"
    r"|tokens \+ `?max_new_tokens"
    r"|reduce the length of",
    re.IGNORECASE,
).search
# One request that is over the limit of tokens a minute never passes, however long one waits.
_over_a_minutes_worth = re.compile(r"request too large for", re.IGNORECASE).search
_no_money = re.compile(
    r"credit balance is too low|insufficient (?:credits|balance|funds|quota)"
    r"|exceeded your (?:current quota|monthly included credits)"
    r"|(?:free|daily) (?:free )?allocation",
    re.IGNORECASE,
).search
_try_again = re.compile(r"try again in ((?:[\d.]+(?:h|ms|m|s))+)", re.IGNORECASE).search
_title = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL).search
# What looks like a key, whoever's it is. The caller's own is masked where it is known.
_secrets = re.compile(r"\b(?:sk|pk|rk|hf|gsk|xai|key)[-_][\w-]{12,}|(?i:bearer)\s+\S{8,}")


class Unreachable(ProviderDown):
    """No connection was made, so that nothing was sent: refused, no such name, no TLS."""


def from_response(
    status: int,
    headers: Headers,
    body: bytes,
    *,
    where: str,
    keyless: str = "",
    now: float | None = None,
) -> GatewayError:
    """`where` is ``provider/model``, `keyless` the hint if no key was sent, `now` seconds since
    1970. Never raises.
    """
    names, words, hinted = _reading(_decoded(body))
    asked = retry_after(headers, now=now)
    if 300 <= status < 400:
        target = one_line(_header(headers, "location") or "", 200)
        return Rejected(
            f"{where} sent us to another address{f', {target}' if target else ''}.",
            hint="Set the provider's base_url to where it really is; keys do not follow redirects.",
        )
    pause = hinted if asked is None else asked
    error = _error(status, names, words, pause, where, keyless=keyless)
    if isinstance(error, RateLimited) and error.retry_after is None:
        error.retry_after = _reset(headers, now)
    error.status = status
    return error


def from_event(error: Any, *, where: str, keyless: str = "") -> GatewayError:
    """From an error object in a stream or a body with status 200, or its wrapper. An unknown kind
    counts as trouble of the provider's.
    """
    names, words, hinted = _reading(error)
    status = 500
    for name in names:
        known = _STATUS_OF.get(name)
        if known is not None:
            status = known
            break
        if name.isdecimal() and 400 <= int(name) < 600:
            status = int(name)
            break
    return _error(status, names, words, hinted, where, keyless=keyless)


def retry_after(headers: Headers, *, now: float | None = None) -> float | None:
    """Seconds of ``retry-after-ms``, or ``retry-after`` in seconds or as an HTTP date; or None."""
    milliseconds = _number(_header(headers, "retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1_000)
    text = _header(headers, "retry-after")
    seconds = _number(text)
    if text is None or seconds is not None:
        return None if seconds is None else max(0.0, seconds)
    try:
        moment = parsedate_to_datetime(text)
        until = moment.timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return max(0.0, until - (time.time() if now is None else now))


def conceal(error: GatewayError, secrets: list[str]) -> None:
    """Remove secrets from an error and its causes: servers quote what they get."""

    def masked(text: object) -> str:
        said = str(text)
        for secret in secrets:
            said = said.replace(secret, "[key]")
        return said

    each: BaseException | None = error if secrets else None
    while isinstance(each, GatewayError):
        each.message = masked(each.message)
        each.args = tuple(map(masked, each.args))
        earlier = each.__cause__ or each.__context__
        # Errors of others keep what they stumbled over in places of their own.
        if not isinstance(earlier, GatewayError) and _quotes(earlier, secrets):
            each.__cause__ = each.__context__ = earlier = None
        each = earlier


def _quotes(error: BaseException | None, secrets: list[str]) -> bool:
    held = list[str]()
    while error is not None:
        held += [str(error), repr(error.args), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return any(secret in text for secret in secrets for text in held)


def _error(
    status: int,
    names: tuple[str, ...],
    words: str,
    asked: float | None,
    where: str,
    *,
    keyless: str,
) -> GatewayError:
    meant = [_STATUS_OF.get(name) for name in names]
    said = f": {words}" if words else ""
    said += "" if said.endswith((".", "!", "?", "…")) else "."
    code = f"status {status}"
    if status == 400:  # the word for everything, of those who name it better in the body
        status = next((found for found in meant if found in (401, 403, 404, 429)), status)
    long = _over_a_minutes_worth if status == 429 else _too_long
    if status not in (401, 403) and (413 in (status, *meant) or long(words)):
        return PromptTooLong(
            f"{where} says that the request is too long{said}",
            hint="Send less, ask for a shorter answer, or use a model with a larger window.",
        )
    if status == 402 or (status < 500 and (402 in meant or _no_money(words))):
        return Rejected(
            f"{where} wants to be paid first{said}",
            hint="Look at the account's credit and limits, or let another provider answer.",
        )
    if status in (401, 403) and keyless:
        return Unauthorized(f"{where} wants a key, and none was sent ({code}){said}", hint=keyless)
    if status in (401, 403):
        return Unauthorized(
            f"{where} does not accept the key ({code}){said}",
            hint="Check that the key is the right one for this provider and may use this model.",
        )
    if status == 429:
        soon = "" if asked is None else f" for {asked:.3g} s"
        return RateLimited(
            f"{where} wants no more requests{soon}{said}",
            hint="Wait, send fewer at a time, or add another model to fall back to.",
            retry_after=asked,
        )
    if status == 404:
        return Rejected(
            f"{where} does not exist there ({code}){said}",
            hint="Check the model's name and the provider's base_url.",
        )
    if status >= 500 or status in (408, 409, 424, 425) or status < 400:
        return ProviderDown(
            f"{where} is in trouble ({code}){said}",
            hint="Try again later, or add another model to fall back to.",
            retry_after=asked,
        )
    return Rejected(
        f"{where} does not accept the request ({code}){said}",
        hint="Change what it complains about; sending the same again does not help.",
    )


def _reading(error: Any) -> tuple[tuple[str, ...], str, float | None]:
    """The names in an error object, most exact first, its text, and seconds to wait."""
    names: list[str] = []
    words = ""
    wait: float | None = None
    for item in _layers(error):
        if isinstance(item, str):
            words = words or item
            continue
        for field in ("code", "type", "error_type", "status"):
            value = item.get(field)
            if isinstance(value, str | int) and not isinstance(value, bool):
                names.append(str(value).lower())
        if not words:
            said = (item.get(field) for field in ("message", "detail", "msg", "error"))
            words = next((text for text in said if isinstance(text, str) and text), "")
        # Hugging Face, about a model that is being loaded.
        estimate = item.get("estimated_time")
        if isinstance(estimate, int | float) and not isinstance(estimate, bool):
            wait = max(0.0, float(estimate))
    if wait is None and (found := _try_again(words)):
        wait = span(found[1])
    return tuple(names), one_line(_secrets.sub("[key]", words), MAX_WORDS), wait


def _layers(error: Any, depth: int = 4) -> Iterator[Any]:
    """Error objects from the innermost out: wrappers say less."""
    if isinstance(error, list):
        error = error[0] if error else None
    if isinstance(error, dict):
        if depth:
            # ``response`` is how the Responses API wraps the error of a stream that failed.
            for field in ("error", "errors", "response", "detail", "message"):
                if isinstance(error.get(field), dict | list):
                    yield from _layers(error[field], depth - 1)
        yield error
    elif isinstance(error, str):
        yield error


def _decoded(body: bytes) -> Any:
    body = body[:_MAX_BODY]
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        text = body.decode("utf-8", "replace").strip()
    if text[:1] in ("{", "[") or not text:
        return None  # JSON that was cut off: what is left would only confuse
    if text.startswith("<"):
        found = _title(text)
        return f"an HTML page, “{found[1].strip()}”" if found else "an HTML page"
    return text


def one_line(text: str, limit: int) -> str:
    """One line, without control characters, cut to `limit` characters."""
    plain = "".join(c if c.isprintable() else " " for c in text[: limit * 20])
    line = " ".join(plain.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    # Years, infinity and NaN are not meant.
    return value if value is not None and abs(value) < 1e9 else None


def _reset(headers: Headers, now: float | None) -> float | None:
    found = read(headers, now=now)
    if found is None:
        return None
    counts = ((found.requests, found.requests_reset), (found.tokens, found.tokens_reset))
    return max((reset for left, reset in counts if left == 0 and reset), default=None)


def _header(headers: Headers, name: str) -> str | None:
    found = headers.get(name)
    if found is None:
        found = next((value for key, value in headers.items() if key.lower() == name), None)
    return found


def from_exception(
    exc: Exception, said: str, *, where: str, url: httpx2.URL | None
) -> GatewayError:
    """From an exception of httpx2. `said` is its message as it may be shown: some quote what was
    sent or received.
    """
    import httpx2

    if isinstance(exc, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        return Rejected(
            f"The address of {where} cannot be used.",
            hint="Set the provider's base_url to something like https://api.example.com/v1.",
        )
    if isinstance(exc, httpx2.LocalProtocolError | UnicodeError):
        return Rejected(
            f"A header for {where} holds characters that no header may have.",
            hint="Check the provider's headers in the configuration.",
        )
    if isinstance(exc, httpx2.DecodingError):
        return BadAnswer(
            f"{where} answered with something that cannot be decompressed.",
            hint="Try again; if it stays, look for a proxy on the way.",
        )
    words = one_line(said, 200).rstrip(".")
    if isinstance(exc, httpx2.ProxyError):
        return ProviderDown(
            f"The proxy on the way to {where} does not let us pass: {words}.",
            hint="Check the variables HTTPS_PROXY and NO_PROXY.",
        )
    host = "" if url is None else url.netloc.decode("ascii", "replace")
    if isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout):
        what, hint = _why_unreachable(exc, host)
        return Unreachable(f"{where} cannot be {what}.", hint=hint)
    if isinstance(exc, httpx2.RemoteProtocolError):
        return ProviderDown(
            f"{where} broke off, or does not speak HTTP at {host}: {words}.",
            hint="Try again; if it stays, check base_url (http or https?) and what is on the way.",
        )
    return ProviderDown(
        f"{where} broke the connection to {host}.",
        hint="Try again; if it stays, look for a proxy or a firewall on the way.",
    )


def overdue(
    *, where: str, timeout: float, silence: float, began: bool, silent: bool
) -> ProviderDown:
    if silent:
        return ProviderDown(
            f"{where} fell silent in the middle of its answer, for {silence:g} s.",
            hint="Try again, or allow a longer silence.",
        )
    done = "finish its answer" if began else "begin to answer"
    error = ProviderDown(
        f"{where} did not {done} within {timeout:.3g} s.",
        hint="Allow more time, ask for less, or add another model to fall back to.",
    )
    # It may be at work still: asking again would be paid for again, and take as long.
    error.retryable = False
    return error


def _why_unreachable(exc: Exception, host: str) -> tuple[str, str]:
    import httpx2

    if isinstance(exc, httpx2.ConnectTimeout):
        return (
            f"reached: no connection to {host} in time",
            "Check base_url and the network; a firewall may swallow the packets.",
        )
    for cause in _causes(exc):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"trusted: {cause.verify_message} ({host})",
                "Check base_url; for a certificate authority of your own set SSL_CERT_FILE.",
            )
        if isinstance(cause, ssl.SSLError):
            return (
                f"reached: no TLS with {host} ({cause.reason or 'broken off'})",
                "Check base_url: does this port speak https?",
            )
        if isinstance(cause, socket.gaierror):
            return (
                f"reached: nobody knows the name {host}",
                "Check base_url, the network, and the name server of this machine.",
            )
        if isinstance(cause, ConnectionRefusedError):
            return f"reached: nothing listens at {host}", "Start the server, or check base_url."
    reasons = (each.strerror for each in _causes(exc) if isinstance(each, OSError))
    reason = next((text for text in reasons if text), "the connection broke")
    return f"reached at {host}: {reason}", "Check base_url and the network."


def _causes(exc: BaseException) -> Iterator[BaseException]:
    yield exc
    if isinstance(exc, BaseExceptionGroup):
        for each in exc.exceptions:
            yield from _causes(each)
    earlier = exc.__cause__ or exc.__context__
    if earlier is not None:
        yield from _causes(earlier)
