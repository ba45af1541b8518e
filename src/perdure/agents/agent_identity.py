"""Who an agent is: a durable id apart from its name, public keys, versions.

An agent signs with an Ed25519 key that it keeps itself; a bank knows public keys only. A signature
is about the agent's id: another agent that gets the name later cannot be taken for it, and a key
that was taken back verifies nothing any more::

    key = SigningKey.make()                              # keep key.private
    await bank.identities.add_key("router", key.public)
    signed = key.sign("Invoice 7 is paid.", identity.id)
    await bank.identities.verify("router", "Invoice 7 is paid.", signed)
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.agents.agent_records import AgentRecord, AgentStatus, no_agent
from perdure.core.display import install_hint
from perdure.core.errors import InvalidInput, NotFound, Unsupported
from perdure.core.input_types import require_text
from perdure.history.log_records import checked_agent
from perdure.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KIND = "ed25519"
_PUBLIC_BYTES = 32
#: Signed together with the message, so that no signature for something else fits.
_PURPOSE = b"perdure agent message 1"
MOST_KEYS = 20


class AgentIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What others may know of an agent."""

    name: str
    id: str
    status: AgentStatus
    version: int
    description: str
    skills: tuple[str, ...]
    tasks: tuple[str, ...]
    #: Id → ``ed25519:…``.
    keys: dict[str, str]

    @classmethod
    def of(cls, record: AgentRecord) -> AgentIdentity:
        return cls(
            name=record.name,
            id=record.id,
            status=record.status,
            version=record.version,
            description=record.description,
            skills=record.skills,
            tasks=record.tasks,
            keys={key_id(public): public for public in record.public_keys},
        )


class SigningKey:
    """A private key. Nothing of it is ever stored here."""

    def __init__(self, private: str) -> None:
        """From what `private` gave. Raises `InvalidInput`; `Unsupported` without cryptography."""
        self.private = private
        self._key = _private_key(_decoded(private, "private key"))

    @classmethod
    def make(cls) -> SigningKey:
        import os

        return cls(_encoded(os.urandom(32)))

    def __repr__(self) -> str:
        return f"<SigningKey {key_id(self.public)}>"

    @property
    def public(self) -> str:
        return _encoded(self._key.public_key().public_bytes_raw())

    def sign(self, message: str | bytes, agent_id: str) -> str:
        """A signature of the agent with this durable id: ``ed25519:KEY:…``."""
        signed = self._key.sign(_signed(message, agent_id))
        return f"{_KIND}:{key_id(self.public)}:{base64.b64encode(signed).decode()}"


class Identities:
    """The identities of a bank's agents."""

    def __init__(self, store: Store) -> None:
        self._agents = store.collection(AgentRecord)

    async def get(self, name: str) -> AgentIdentity:
        """By name, or by id. Raises `NotFound`."""
        wanted = require_text(name, "name")
        if wanted.startswith("ag_"):
            found = await self._agents.query().where("id", "=", wanted).limit(1).values()
            if found:
                return AgentIdentity.of(found[0])
        record = await self._agents.get(checked_agent(wanted))
        if record is None:
            raise no_agent(name)
        return AgentIdentity.of(record)

    async def add_key(self, name: str, public: str) -> AgentIdentity:
        """Let what this key signs count as the agent's. Raises `InvalidInput` if it is none."""
        _checked_public(public)

        def changed(found: AgentRecord) -> tuple[str, ...]:
            keys = tuple(dict.fromkeys((*found.public_keys, public)))
            if len(keys) > MOST_KEYS:
                raise InvalidInput(
                    f"The agent {name} has {MOST_KEYS} keys.", hint="Take back one that is old."
                )
            return keys

        return await self._change(name, changed)

    async def remove_key(self, name: str, key: str) -> AgentIdentity:
        """Take a key back, by its id: it verifies nothing any more. Raises `NotFound`."""

        def changed(found: AgentRecord) -> tuple[str, ...]:
            left = tuple(public for public in found.public_keys if key_id(public) != key)
            if left == found.public_keys:
                raise NotFound(f"The agent {name} has no key {key!r}.", hint="List its keys.")
            return left

        return await self._change(name, changed)

    async def verify(self, name: str, message: str | bytes, signature: str) -> bool:
        """Whether the agent that has this name now signed this message with one of its keys."""
        identity = await self.get(name)
        kind, _, rest = require_text(signature, "signature").partition(":")
        key, _, signed = rest.partition(":")
        public = identity.keys.get(key)
        if kind != _KIND or public is None:
            return False
        try:
            raw = base64.b64decode(signed, validate=True)
        except binascii.Error:
            return False
        return _verifies(_checked_public(public), raw, _signed(message, identity.id))

    async def _change(
        self, name: str, change: Callable[[AgentRecord], tuple[str, ...]]
    ) -> AgentIdentity:
        def changed(found: AgentRecord | None) -> AgentRecord:
            if found is None:
                raise no_agent(name)
            return msgspec.structs.replace(found, public_keys=change(found))

        return AgentIdentity.of(await self._agents.change(checked_agent(name), changed))


def key_id(public: str) -> str:
    """16 hexadecimal characters that stand for a public key."""
    return hashlib.sha256(public.encode()).hexdigest()[:16]


def _signed(message: str | bytes, agent_id: str) -> bytes:
    content = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
    return b"\n".join((_PURPOSE, agent_id.encode(), content))


def _encoded(raw: bytes) -> str:
    return f"{_KIND}:{base64.b64encode(raw).decode()}"


def _decoded(text: Any, what: str) -> bytes:
    kind, _, encoded = require_text(text, what).partition(":")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if kind != _KIND or len(raw) != _PUBLIC_BYTES:
        raise InvalidInput(
            f"This is no {what} of Ed25519.",
            hint="Write it as 'ed25519:' and 32 bytes in base64, as SigningKey gives it.",
        )
    return raw


def _checked_public(public: Any) -> bytes:
    return _decoded(public, "public key")


def _private_key(raw: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise _unsupported() from None
    return Ed25519PrivateKey.from_private_bytes(raw)


def _verifies(public: bytes, signature: bytes, content: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise _unsupported() from None
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _unsupported() -> Unsupported:
    return Unsupported("Signatures need cryptography.", hint=install_hint("encryption"))
