"""Where large artifacts lie: a folder, or a place on S3 named by a URL.

    s3://bucket/prefix?region=eu-central-1
    s3://bucket/prefix?endpoint=https://minio.example.com&region=us-east-1

| option | meaning |
|---|---|
| ``region`` | the bucket's region; else ``AWS_REGION``, else us-east-1 |
| ``endpoint`` | the server, if it is not AWS; else ``AWS_ENDPOINT_URL`` |
| ``allow_http=yes`` | an endpoint without TLS that is not on this machine |
| ``virtual_host=yes`` | the bucket stands in the host's name, not in the path |
| ``timeout`` | seconds that one request may take (30) |
| ``retry`` | seconds for which a failing request is repeated (60) |

Who may use it is said by the usual AWS variables or files, and never by the URL.
"""

from __future__ import annotations

import ipaddress
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec

from perdure.artifacts.artifact import ArtifactPlace
from perdure.core.errors import InvalidURL

_HINT = "Write it like s3://bucket/prefix?region=eu-central-1."
_OPTIONS = {"region", "endpoint", "allow_http", "virtual_host", "timeout", "retry"}
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_is_bucket = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]").fullmatch
_is_region = re.compile(r"[a-z0-9-]{1,40}").fullmatch
_is_segment = re.compile(r"[A-Za-z0-9!_.()=@,+-]+").fullmatch


class S3Address(msgspec.Struct, frozen=True, kw_only=True):
    """A place on S3. Its text is its URL, without secrets."""

    bucket: str
    #: What every object's name begins with, without slashes at its ends; may be empty.
    prefix: str = ""
    region: str = ""
    endpoint: str = ""
    allow_http: bool = False
    virtual_host: bool = False
    #: Seconds.
    timeout: float = 30.0
    retry: float = 60.0

    def __str__(self) -> str:
        shown = {"region": self.region, "endpoint": self.endpoint}
        if self.allow_http:
            shown["allow_http"] = "yes"
        if self.virtual_host:
            shown["virtual_host"] = "yes"
        options = urlencode({name: text for name, text in shown.items() if text}, safe=":/")
        place = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        return f"{place}?{options}" if options else place


#: Where objects lie.
PlaceAddress: TypeAlias = Path | S3Address


def place_of(text: str) -> PlaceAddress:
    """A URL of S3, else a folder. Raises `InvalidURL` for other addresses."""
    if text.startswith("s3://"):
        return parse(text)
    if "://" in text or not text or "\0" in text:
        raise InvalidURL(
            f"{_without_secrets(text)!r} is no place for artifacts.",
            hint="Give a folder, or an address like s3://bucket/prefix.",
        )
    return Path(text).expanduser().absolute()


def parse(url: str) -> S3Address:
    """Raises `InvalidURL` if it is not an S3 URL, or has unknown or secret parts."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:  # not chained: its message may hold a secret
        raise InvalidURL(
            f"The address {_without_secrets(url)!r} cannot be read.", hint=_HINT
        ) from None
    if parts.scheme != "s3" or not _is_bucket(parts.netloc) or parts.fragment:
        if "@" in parts.netloc:
            raise _secret("A user or password")
        raise InvalidURL(
            f"{_without_secrets(url)!r} does not name a bucket of S3.",
            hint=_HINT,
        )
    if unknown := sorted(options.keys() - _OPTIONS):
        if any(word in name.lower() for name in unknown for word in ("key", "secret", "token")):
            raise _secret("A key")
        raise InvalidURL(
            f"An address of S3 has no option {unknown[0]!r}.",
            hint=f"There are {', '.join(sorted(_OPTIONS))}.",
        )
    address = S3Address(
        bucket=parts.netloc,
        prefix=_prefix(unquote(parts.path)),
        region=_region(options.get("region", "")),
        endpoint=options.get("endpoint", "").rstrip("/"),
        allow_http=_flag(options, "allow_http"),
        virtual_host=_flag(options, "virtual_host"),
        timeout=_seconds(options, "timeout", 30.0),
        retry=_seconds(options, "retry", 60.0),
    )
    if address.endpoint:
        check_endpoint(address.endpoint, allow_http=address.allow_http)
    return address


def check_endpoint(endpoint: str, *, allow_http: bool) -> bool:
    """Whether the endpoint is without TLS.
    Raises `InvalidURL` if it is not a server's address, or without TLS and not on this machine.
    """
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidURL("The endpoint of the address cannot be read.", hint=_HINT) from None
    if "@" in parts.netloc:
        raise _secret("A user or password")
    if parts.scheme not in {"http", "https"} or not host or parts.query or parts.fragment:
        raise InvalidURL(
            "The endpoint of the address is not that of a server.",
            hint="Write it like endpoint=https://minio.example.com:9000.",
        )
    plain = parts.scheme == "http"
    if plain and not allow_http and not _is_loopback(host):
        raise InvalidURL(
            f"The endpoint http://{parts.netloc} is without TLS: others could read along.",
            hint="Use https, or add allow_http=yes to the address if the network is yours.",
        )
    return plain


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _prefix(path: str) -> str:
    prefix = path.strip("/")
    segments = prefix.split("/") if prefix else []
    if not all(_is_segment(segment) and segment not in {".", ".."} for segment in segments):
        raise InvalidURL(
            "The prefix of the address holds something else than plain names.",
            hint="Use letters, digits, and -_.!()=@,+ in it, and single slashes.",
        )
    return prefix


def _region(region: str) -> str:
    if region and not _is_region(region):
        raise InvalidURL("The region of the address is none.", hint=_HINT)
    return region


def _flag(options: dict[str, str], name: str) -> bool:
    text = options.get(name, "no").lower()
    if text not in _FLAGS:
        raise InvalidURL(
            f"The option {name} of the address is neither yes nor no.",
            hint=f"Write {name}=yes or {name}=no.",
        )
    return _FLAGS[text]


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    try:
        seconds = float(options.get(name, default))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise InvalidURL(
            f"The option {name} of the address is no number of seconds.",
            hint=f"Write, for example, {name}={default:g}.",
        )
    return seconds


def _secret(what: str) -> InvalidURL:
    return InvalidURL(
        f"{what} stands in the address of S3, where others would see it.",
        hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use ~/.aws/credentials; and"
        " replace the key, if it was real.",
    )


def _without_secrets(url: str) -> str:
    return re.sub(r"//[^/]*@", "//…@", url.partition("?")[0])


class StoredObject(msgspec.Struct, frozen=True):
    """An object that is there: its path, its bytes, and when it was last written or renewed."""

    path: str
    size: int
    modified_us: int
    #: Changes with the object's content, where the place can tell.
    etag: str | None = None


class ReceivedObject(ABC):
    """Bytes that have arrived and have no name yet."""

    size: int

    @abstractmethod
    async def place(self, path: str) -> None:
        """Store them durably under this path, replacing any object there. May be called again."""

    @abstractmethod
    async def replace(self, path: str) -> bool:
        """The same, if there is an object under this path; False if there is none (any more)."""


class ObjectPlace(ABC):
    """Objects in one place. Any number of processes may use it at once."""

    kind: ClassVar[ArtifactPlace]

    @property
    @abstractmethod
    def shown(self) -> str: ...

    @abstractmethod
    def receive(self, pieces: AsyncIterator[bytes]) -> AbstractAsyncContextManager[ReceivedObject]:
        """Take all bytes in, without a path; they are discarded at the end of the context. Errors
        of `pieces` pass through.
        """

    @abstractmethod
    async def find(self, path: str, tagged: str) -> StoredObject | None:
        """The object, or None. Raises `Corrupted` if something else is there; `tagged` is for
        errors.
        """

    @abstractmethod
    def read(self, found: StoredObject, tagged: str) -> AsyncGenerator[bytes, None]:
        """The bytes of an object, in pieces of some megabytes.
        Raises `ArtifactMissing` if it is gone, `Unavailable` if it is replaced meanwhile and the
        place cannot tell the two apart.
        """

    @abstractmethod
    async def renew(self, path: str) -> bool:
        """Make an object as durable as a new one; False if it is not there."""

    @abstractmethod
    async def delete(self, path: str) -> None:
        """Remove the object durably; no error if there is none."""

    @abstractmethod
    def listed(self, folder: str) -> AsyncIterator[StoredObject]:
        """Every object in a folder, at any depth, in any order."""
