"""The hash chain: every piece of a session's log commits to all that came before it.

    commitment = H("perdure.piece", salt, content, where its rounds begin, times, tags, masks)
    link       = H("perdure.link", previous link, place in the chain, turn, round, commitment)

The salt makes the commitment say nothing about the content, even to someone who could guess it. So
a piece can be forgotten: content and salt are destroyed, the commitment stays in their place, and
the chain still closes. Artifacts are covered, because the content names them by their hash.

A fork's chain starts from the link of the last piece that it shares.
"""

from __future__ import annotations

import hashlib
import os
import struct

import msgspec

from perdure.history.log_records import TurnPiece

GENESIS = bytes(32)
_SALT_BYTES = 16
# Tagged, so that no hash of one kind can pass for one of the other. Changing a tag or the layout
# breaks every chain there is.
_piece = hashlib.sha256(b"perdure.piece.1\n")
_link = hashlib.sha256(b"perdure.link.1\n")
_numbers = struct.Struct(">QQQ").pack
_encode = msgspec.msgpack.Encoder(order="sorted").encode


def new_salt() -> bytes:
    return os.urandom(_SALT_BYTES)


def commit(piece: TurnPiece) -> bytes:
    facts = (piece.breaks, piece.time, piece.ended, piece.tags, piece.masked)
    return commitment(piece.salt, facts, piece.content)


def commitment(salt: bytes, facts: tuple[object, ...], content: bytes) -> bytes:
    """Of a piece that is yet to be made; `facts` in the order of `commit`."""
    digest = _piece.copy()
    digest.update(salt)
    digest.update(_encode(facts))
    digest.update(content)
    return digest.digest()


def link(previous: bytes, piece: int, turn: int, round: int, commitment: bytes) -> bytes:
    digest = _link.copy()
    digest.update(previous or GENESIS)
    digest.update(_numbers(piece, turn, round))
    digest.update(commitment)
    return digest.digest()


def relink(previous: bytes, piece: TurnPiece) -> bytes:
    commitment = piece.commitment or commit(piece)
    return link(previous, piece.number, piece.turn, piece.round, commitment)


class Follower:
    """Follows a chain piece by piece, in order. Behind a broken link it goes on from what is
    stored, so that one fault is reported once.
    """

    def __init__(self, root: bytes, first: int) -> None:
        self.previous = root or GENESIS
        self.expected = first  # The number of the piece that has to come next.

    def step(self, piece: TurnPiece) -> str:
        """What is wrong at this piece; None if nothing."""
        fault = ""
        if piece.number < self.expected:
            return "the chain is broken here: its place is taken by another piece"
        if piece.number > self.expected:
            missing = f"piece {self.expected}"
            if piece.number > self.expected + 1:
                missing = f"pieces {self.expected} to {piece.number - 1}"
            fault = f"the chain is broken before it: {missing} missing"
        elif piece.forgotten and piece.content:
            fault = "it was forgotten, and has content again"
        elif relink(self.previous, piece) != piece.link:
            fault = "the chain is broken here: it is not as it was written, or not in its place"
        self.previous, self.expected = piece.link, piece.number + 1
        return fault


def tombstone(piece: TurnPiece) -> TurnPiece:
    return msgspec.structs.replace(
        piece,
        content=b"",
        salt=b"",
        breaks=(),
        commitment=commit(piece),
        masked={},
        tags={},
    )
