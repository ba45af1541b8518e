"""Reference layers: Markdown files of a folder, or records in the bank.

`sync` looks for files that are new, changed or gone, and brings the bank in line; what has the same
size and time as before is not read. A file that cannot be used any more keeps the layer that it
made last, and `check` says what is wrong with it. So does a folder that is not there: it may lie on
another machine, or be back soon. `remove` takes such layers out. `add` makes a record of a text: it
lies in the bank and needs no file.

Layers are everybody's: all agents may see them. They are not made from turns, so forgetting does
not concern them; `remove` does.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from perdure.core.errors import InvalidInput, NotFound
from perdure.core.input_types import require_path, require_text
from perdure.core.messages import sound
from perdure.core.tokens import Counter
from perdure.recall.memories.memories import Plain, Scrub
from perdure.recall.memories.memory_writer import Indexer
from perdure.recall.references import files, layers
from perdure.recall.references.files import Content, LayerFile, LayerProblem, Scanned
from perdure.recall.references.layer_writer import LayerWriter, WithLayer, is_there
from perdure.recall.references.layers import Layer, LayerRecord, LayerText, Origin
from perdure.storage.store import Store

T = TypeVar("T")

#: What is told about a layer whose file is out of sight.
_LEFT = "The file is not there; the layer stays until it is removed."


class Synced(msgspec.Struct, frozen=True):
    """What `sync` did: names of layers, and what is wrong with files."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    problems: tuple[LayerProblem, ...] = ()


class References:
    """The reference layers of a bank."""

    def __init__(
        self,
        store: Store,
        folder: Path | None,
        counter: Callable[[], Counter],
        index: Indexer | None = None,
        *,
        plain: Plain | None = None,
        scrub: Scrub | None = None,
        needs_folder: bool = True,
    ) -> None:
        """`needs_folder`: somebody asked for the folder, and is told if it is not there."""
        self.folder = None if folder is None else folder.absolute()
        self._store = store
        # Read when it is first needed: it takes a while.
        self._counter = counter
        self._writing = LayerWriter(store, index)
        self._plain = plain
        self._scrub = scrub
        self._needs_folder = needs_folder
        self._one_at_a_time = asyncio.Lock()
        self._synced: tuple[float, Synced] | None = None
        #: All layers, as of a generation of the store and so many changes of ours.
        self._listed: tuple[tuple[int | None, int], builtins.list[LayerRecord]] | None = None

    # Reading ----------------------------------------------------------------------------------

    async def get(self, name: str, /) -> Layer | None:
        """The layer of this name."""
        return await self.get_for(None, name)

    async def get_for(self, agent: str | None, name: str) -> Layer | None:
        """The same, if this agent may see it; None: anybody."""
        require_text(name, "name")
        if agent is not None:
            require_text(agent, "agent")
        try:
            key = layers.checked_name(name)
        except InvalidInput:
            return None
        record = await self._store.collection(LayerRecord).get(key)
        text = await self._store.collection(LayerText).get(key)
        if record is None or text is None or not (agent is None or record.is_visible_to(agent)):
            return None
        return _layer(record, text.text)

    async def hidden_from(self, agent: str) -> builtins.list[int]:
        """The numbers of the layers that an agent may not see: entries of the canon, for others."""
        name = require_text(agent, "agent")
        return [each.ordinal for each in await self.list() if not each.is_visible_to(name)]

    async def list(self) -> builtins.list[LayerRecord]:
        """All layers by name, without their texts."""
        state = await self._store.adapter.generation(), self._writing.changes
        if self._listed is None or self._listed[0] != state or state[0] is None:
            query = self._store.collection(LayerRecord).query().order_by("key")
            self._listed = state, await query.values()
        return [*self._listed[1]]

    async def numbered(self, ordinals: Iterable[int]) -> dict[int, Layer]:
        """Layers by their numbers in the index; those that are there."""
        wanted = frozenset(ordinals)
        records = [record for record in await self.list() if record.ordinal in wanted]
        texts = await self._store.collection(LayerText).get_many([each.name for each in records])
        return {
            record.ordinal: _layer(record, text.text)
            for record, text in zip(records, texts, strict=True)
            if text is not None
        }

    # Writing ----------------------------------------------------------------------------------

    async def add(
        self,
        text: str,
        *,
        name: str = "",
        file: str = "",
        replace: bool = False,
        within: WithLayer | None = None,
    ) -> LayerRecord:
        """Keep a Markdown text, which may have front matter, as a record; again, to replace it.

        `name` is used if the text has none; `file` is what errors call it; `within` runs in the
        transaction that writes it.

        Raises `InvalidInput` for what cannot be used, naming the line, and if a file has made a
        layer of this name; not if that was copied and this is to `replace` it. Raises `TooLarge`
        for more than 20,000 tokens.
        """
        text = require_text(text, "text", hint="Use references.add_file(path).")
        name, file = require_text(name, "name"), require_text(file, "file")
        layer = self._read(sound(text), file or name or "the text", name)
        return await self._writing.put(layer, replace=replace, within=within)

    async def add_file(
        self, path: Path | str, *, name: str = "", replace: bool = False
    ) -> LayerRecord:
        """The same with a file that lies anywhere: it is copied; again, if it has changed.

        Raises like `add`, and if a layer of this name was copied from another file, or made from a
        text; not if this is to `replace` it. `check` tells if the file is another one by then.
        """
        path, name = require_path(path, "path"), require_text(name, "name")
        file = await asyncio.to_thread(path.absolute)
        if await asyncio.to_thread(file.is_dir):
            raise InvalidInput(
                f"{path} is a folder.",
                hint="Name a Markdown file; or let recall.references name the folder.",
            )
        found = await asyncio.to_thread(files.load, file.parent, file.name)
        if isinstance(found, LayerProblem):
            raise InvalidInput(f"{path}: {found.what}", hint="Give another Markdown file.")
        layer = self._read(found.text, path.name, name or layers.name_of_file(path.stem))
        return await self._writing.put(
            layer,
            copied=Origin(str(file.parent), file.name, hash=found.hash),
            replace=replace,
        )

    async def put_canon(
        self, name: str, text: str, readers: tuple[str, ...], within: WithLayer
    ) -> LayerRecord:
        """Make a layer that belongs to the canon, for these readers: see `perdure.agents.canon`.
        Raises as `add` does.
        """
        name, text = require_text(name, "name"), require_text(text, "text")
        layer = self._read(sound(text), name, name)
        if layer.name != name:
            raise InvalidInput(
                f"The front matter gives another name than {name}.",
                hint="Leave the name out of it.",
            )
        return await self._writing.put(layer, canon=readers, replace=True, within=within)

    async def remove_canon(self, name: str, within: WithLayer) -> bool:
        """Returns whether nothing of it can be read in the bank's files any more."""
        await self._writing.remove(require_text(name, "name"), within=within)
        return True if self._scrub is None else await self._scrub()

    async def remove(self, name: str) -> bool:
        """Remove a layer for good.

        Returns whether nothing of it can be read in the bank's files any more. Raises
        `InvalidInput` if there is none, and if its file is there: it would come back.
        """
        require_text(name, "name")
        record = next((each for each in await self.list() if each.name == name), None)
        if record is None:
            raise NotFound(f"There is no reference layer {name!r}.", hint="List them.")
        if record.canon is not None:
            raise InvalidInput(
                f"{name} is an entry of the canon.", hint=f"Use `perdure canon remove {name}`."
            )
        if record.origin is not None and await is_there(record.origin):
            raise InvalidInput(
                f"{name} comes from the file {record.origin.file}.", hint="Delete the file instead."
            )
        await self._writing.remove(name)
        if self._scrub is None:
            return True
        return await self._scrub()

    async def sync(self, *, max_age: float = 0.0) -> Synced:
        """Bring the layers in line with the files of the folder.

        If that was done at most `max_age` seconds ago by this process, its result is returned.
        Never raises for what lies in the folder. A folder that is not there removes nothing.
        """
        async with self._one_at_a_time:
            now = time.monotonic()
            if self._synced is None or now - self._synced[0] >= max_age:
                self._synced = (now, await self._sync())
            return self._synced[1]

    async def refill(self) -> int:
        """Put all layers into the index again; returns how many there are."""
        found = await self.list()
        for record in found:
            await self._store.transact(
                lambda transaction, name=record.name: self._writing.reindex(transaction, name)  # type: ignore[misc]
            )
        return len(found)

    async def check(self) -> builtins.list[LayerProblem]:
        """What is wrong with files and layers, or unwise. Changes nothing."""
        scanned = await self._scanned()
        problems = scanned.problems
        every = await self.list()
        known = self._made_here(every)
        names = {each.name: each.name for each in every if each.origin is None}
        for file in scanned.files:
            loaded = await self._loaded(file)
            if isinstance(loaded, LayerProblem):
                problems.append(loaded)
                continue
            layer, hash_ = loaded
            if layer.name in names:
                what = f"Its name {layer.name} is that of {names[layer.name]}, too."
                problems.append(LayerProblem(file.path, what))
            names.setdefault(layer.name, file.path)
            problems += [LayerProblem(file.path, what, True) for what in layers.warnings(layer)]
            record = known.get(file.path)
            if record is None or record.origin is None or record.origin.hash != hash_:
                what = "It is new" if record is None else "It has changed since it was indexed"
                problems.append(LayerProblem(file.path, f"{what}.", True))
        problems += [
            LayerProblem(path, "It is gone.", True) for path in known if not scanned.has(path)
        ]
        for record in every:
            if record.name not in {each.name for each in known.values()}:
                problems += [
                    LayerProblem(record.name, what, True) async for what in self._apart(record)
                ]
        return problems

    # ------------------------------------------------------------------------------------------

    async def _sync(self) -> Synced:
        scanned = await self._scanned()
        problems = scanned.problems
        known = self._made_here(await self.list())
        added, changed = builtins.list[str](), builtins.list[str]()
        removed = [old.name for path, old in known.items() if not scanned.has(path)]
        for name in removed:  # first: another file may have the name now
            await self._writing.remove(name)
        new = [file for file in scanned.files if not _is_as_before(known.get(file.path), file)]
        vacated, left = await self._vacated(new, known), builtins.list[LayerRecord]()
        for file in new:
            old = known.get(file.path)
            loaded = await self._loaded(file)
            if isinstance(loaded, LayerProblem):
                problems.append(loaded)
                continue
            layer, hash_ = loaded
            origin = _origin(self.folder, file, hash_)
            if old is not None and old.origin is not None and old.origin.hash == hash_:
                await self._writing.touch(old.name, origin)
                continue
            try:
                await self._writing.put(layer, origin=origin, vacated=vacated)
            except InvalidInput as exc:
                problems.append(LayerProblem(file.path, exc.message))
                continue
            (added if old is None else changed).append(layer.name)
            if old is not None and old.name != layer.name:
                left.append(old)
        removed += [  # unless it is another file's by now
            old.name for old in left if await self._writing.remove(old.name, made_from=old.origin)
        ]
        return Synced(tuple(added), tuple(changed), tuple(removed), tuple(problems))

    async def _vacated(
        self, new: Iterable[LayerFile], known: Mapping[str, LayerRecord]
    ) -> frozenset[str]:
        """Names of layers whose files now say another one: these can be other files' now."""
        found = set[str]()
        for file in new:
            if (old := known.get(file.path)) is not None:
                loaded = await self._loaded(file)
                if not isinstance(loaded, LayerProblem) and loaded[0].name != old.name:
                    found.add(old.name)
        return frozenset(found)

    async def _scanned(self) -> Scanned:
        if self.folder is None:
            return Scanned([], [])
        try:
            return await asyncio.to_thread(files.scan, self.folder)
        except FileNotFoundError:
            missing = LayerProblem(str(self.folder), "There is no such folder.", warning=True)
        except OSError as exc:
            what = f"The folder cannot be read: {exc.strerror or exc}."
            missing = LayerProblem(str(self.folder), what)
        known = self._made_here(await self.list())
        if not known and not self._needs_folder and missing.warning:
            return Scanned([], [])
        return Scanned([], [missing, *(LayerProblem(path, _LEFT, True) for path in known)])

    async def _loaded(self, file: LayerFile) -> tuple[Layer, str] | LayerProblem:
        if self.folder is None:
            return LayerProblem(file.path, "There is no folder.")
        found = await asyncio.to_thread(files.load, self.folder, file.path)
        if isinstance(found, LayerProblem):
            return found
        try:
            default = layers.name_of_file(Path(file.path).stem)
            return self._read(found.text, file.path, default), found.hash
        except InvalidInput as exc:
            return LayerProblem(file.path, f"{exc.message.removeprefix(file.path).lstrip(', ')}")

    async def _apart(self, record: LayerRecord) -> AsyncIterator[str]:
        """What one would do well to know about a layer that is none of this folder's."""
        layer = await self.get(record.name)
        if layer is None or record.canon is not None:  # the canon looks after its own
            return
        if record.origin is not None:
            if not await is_there(record.origin):
                yield f"It comes from {record.origin.file}. {_LEFT}"
            return
        for what in layers.warnings(layer):
            yield what
        if record.copied is not None:
            source = await asyncio.to_thread(
                files.load, Path(record.copied.folder), record.copied.path
            )
            if isinstance(source, Content) and source.hash != record.copied.hash:
                yield f"{record.copied.file} has changed since it was added: add it again."

    def _made_here(self, every: Iterable[LayerRecord]) -> dict[str, LayerRecord]:
        """The layers that files of this folder made, by path."""
        return {
            record.origin.path: record
            for record in every
            if record.origin is not None and record.origin.folder == str(self.folder)
        }

    def _read(self, text: str, file: str, name: str) -> Layer:
        layer = layers.read(text, file, self._counter(), name=name)
        if self._plain is None:
            return layer
        masked = self._plain({"text": layer.text, "title": layer.title})
        return replace(layer, text=masked["text"], title=masked["title"])


def _layer(record: LayerRecord, text: str) -> Layer:
    return Layer(
        name=record.name,
        title=record.title,
        tags=record.tags,
        weight=record.weight,
        triggers=record.triggers,
        tokens=record.tokens,
        text=text,
    )


def _is_as_before(record: LayerRecord | None, file: LayerFile) -> bool:
    origin = None if record is None else record.origin
    return (
        origin is not None
        and origin.modified > 0
        and (origin.size, origin.modified) == (file.size, file.modified)
    )


def _origin(folder: Path | None, file: LayerFile, hash_: str) -> Origin:
    modified = 0 if files.is_fresh(file.modified, time.time_ns()) else file.modified
    return Origin(str(folder), file.path, file.size, modified, hash_)
