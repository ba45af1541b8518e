"""What goes wrong on the way to a provider and back, as errors that say what to do."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import httpx2

from perdure.core.errors import BadAnswer, GatewayError, ProviderDown, Rejected
from perdure.gateway.failures import Unreachable


def from_exception(
    exc: Exception, said: str, *, where: str, url: httpx2.URL | None
) -> GatewayError:
    """The error that something raised by httpx2 means. `where` is ``provider/model``.

    `said` is its message as it may be shown: some quote what was sent or received.
    """
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
    if isinstance(exc, httpx2.ProxyError):
        return ProviderDown(
            f"The proxy on the way to {where} does not let us pass: {_short(said)}.",
            hint="Check the variables HTTPS_PROXY and NO_PROXY.",
        )
    host = "" if url is None else url.netloc.decode("ascii", "replace")
    if isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout):
        return _unreachable(exc, where, host)
    if isinstance(exc, httpx2.RemoteProtocolError):
        return ProviderDown(
            f"{where} broke off, or does not speak HTTP at {host}: {_short(said)}.",
            hint="Try again; if it stays, check base_url (http or https?) and what is on the way.",
        )
    return ProviderDown(
        f"{where} broke the connection to {host}.",
        hint="Try again; if it stays, look for a proxy or a firewall on the way.",
    )


def overdue(
    *, where: str, timeout: float, silence: float, began: bool, silent: bool
) -> ProviderDown:
    """The error for a provider that took too long: for one pause, if `silent`, or altogether."""
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


def _unreachable(exc: Exception, where: str, host: str) -> Unreachable:
    if isinstance(exc, httpx2.ConnectTimeout):
        return Unreachable(
            f"{where} cannot be reached: no connection to {host} in time.",
            hint="Check base_url and the network; a firewall may swallow the packets.",
        )
    for cause in _causes(exc):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Unreachable(
                f"{where} cannot be trusted: {cause.verify_message} ({host}).",
                hint="Check base_url; for a certificate authority of your own set SSL_CERT_FILE.",
            )
        if isinstance(cause, ssl.SSLError):
            return Unreachable(
                f"{where} cannot be reached: no TLS with {host} ({cause.reason or 'broken off'}).",
                hint="Check base_url: does this port speak https?",
            )
        if isinstance(cause, socket.gaierror):
            return Unreachable(
                f"{where} cannot be reached: nobody knows the name {host}.",
                hint="Check base_url, the network, and the name server of this machine.",
            )
        if isinstance(cause, ConnectionRefusedError):
            return Unreachable(
                f"{where} cannot be reached: nothing listens at {host}.",
                hint="Start the server, or check base_url.",
            )
    reasons = (each.strerror for each in _causes(exc) if isinstance(each, OSError))
    reason = next((text for text in reasons if text), "the connection broke")
    return Unreachable(
        f"{where} cannot be reached at {host}: {reason}.",
        hint="Check base_url and the network.",
    )


def _short(said: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in said[:200])
    return " ".join(plain.split()).rstrip(".")


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """An exception and what led to it, the latest first; of several at once, all."""
    yield exc
    if isinstance(exc, BaseExceptionGroup):
        for each in exc.exceptions:
            yield from _causes(each)
    earlier = exc.__cause__ or exc.__context__
    if earlier is not None:
        yield from _causes(earlier)
