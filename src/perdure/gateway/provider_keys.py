"""Keys of providers, from the environment or the system's keyring. Never stored or shown.

The keyring is asked only if the package ``keyring`` is installed::

    keyring set perdure OPENAI_API_KEY
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future

from perdure.core.errors import Unauthorized
from perdure.gateway.providers import Provider

SERVICE = "perdure"
#: A keyring may wait for somebody to unlock it. Callers wait so many seconds, all in all.
PATIENCE = 5.0
#: What is shorter cannot be told from other words when it is masked.
_SHORTEST = 8
#: Seconds after which a key that was not there is looked for again.
AGAIN = 60.0


async def key_for(
    provider: Provider, environ: Mapping[str, str] = os.environ, *, patience: float = PATIENCE
) -> str | None:
    """The key of a provider, or None.

    The variable comes first, read anew each time. The keyring is asked once, in a thread, for
    providers that need a key; if it takes longer than `patience` seconds, there is no key until it
    answers. Raises `Unauthorized` for a key that no header can carry. Errors of the keyring count
    as no key.
    """
    name = provider.key_variable
    if not name:
        return None
    key = environ.get(name, "").strip()
    place = f"the variable {name}"
    if not key and provider.needs_key:
        key = (await _kept(name, patience)).strip()
        place = f"{name} in the keyring"
    if not key:
        return None
    if not (key.isascii() and key.isprintable()):
        # An HTTP client would refuse it too, and show it in its error.
        raise Unauthorized(
            f"The key in {place} has characters that no key has.",
            hint="Copy it again, without line breaks or quotation marks around it.",
        )
    return key


async def require_key(provider: Provider, environ: Mapping[str, str]) -> str | None:
    """The key; None if none is needed. Raises `Unauthorized` if it is missing."""
    if not provider.key_variable:
        return None
    found = await key_for(provider, environ)
    if found is None and provider.needs_key:
        raise Unauthorized(
            f"There is no key for {provider.name}.",
            hint=f"Set {provider.key_variable}, or keep it in the system's keyring:"
            f" keyring set {SERVICE} {provider.key_variable}.",
        )
    return found


def secrets_of(provider: Provider, key: str | None, *others: str) -> list[str]:
    """Secrets of a call, the longest first; headers may hold further keys."""
    held = [(key or "").strip(), *provider.headers.values(), *others]
    return sorted((each for each in held if len(each) >= _SHORTEST), key=len)[::-1]


#: When the keyring was asked for a name, and what it says.
_questions: dict[str, tuple[float, Future[str]]] = {}
_asking = threading.Lock()


async def _kept(name: str, patience: float) -> str:
    with _asking:
        now = time.monotonic()
        asked, answer = _questions.get(name, (now, None))
        if answer is None or (answer.done() and not answer.result() and now - asked > AGAIN):
            if importlib.util.find_spec("keyring") is None:
                return ""
            asked, answer = _questions[name] = now, Future()
            # Not a thread of asyncio's: the interpreter would wait at exit for a keyring that
            # nobody unlocks.
            threading.Thread(
                target=_ask, args=(name, answer), name="perdure-keyring", daemon=True
            ).start()
    if not answer.done():
        left = asked + patience - time.monotonic()
        await asyncio.wait([asyncio.wrap_future(answer)], timeout=max(left, 0))
    return answer.result() if answer.done() else ""


def _ask(name: str, answer: Future[str]) -> None:
    found = None
    try:
        import keyring
        import keyring.errors

        try:
            found = keyring.get_password(SERVICE, name)
        except (keyring.errors.KeyringError, OSError, RuntimeError, ValueError):
            found = None  # locked, broken, or none on this system: the same as no key
    finally:
        answer.set_result(found or "")
