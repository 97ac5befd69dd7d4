"""Receipts: proof, carried by the client, of which turn an assistant message was.

A dialect that makes clients return a value verbatim (Anthropic's `signature`, Responses' `encrypted_content`) carries
one. A receipt names a turn and nothing else: what the client says the turn was is still compared.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac


class Receipts:
    """Issues and reads the receipts of one session."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def issue(self, turn: int) -> str:
        """The receipt of a turn."""
        turn_bytes = turn.to_bytes(6, "big")
        # 24 bytes in all, so that base64 needs no padding.
        return base64.urlsafe_b64encode(turn_bytes + self._mark(turn_bytes)).decode()

    def read(self, receipt: str) -> int | None:
        """The turn a receipt names, or None for one that this session did not issue."""
        try:
            data = base64.urlsafe_b64decode(receipt)
        except (binascii.Error, ValueError):
            return None
        turn_bytes, mark = data[:6], data[6:]
        return int.from_bytes(turn_bytes, "big") if hmac.compare_digest(mark, self._mark(turn_bytes)) else None

    def client_id(self, internal: str) -> str:
        """The id a client is given for a call, or for the reply of a turn: 24 hexadecimal digits."""
        return hashlib.blake2b(internal.encode(), key=self._secret, digest_size=12).hexdigest()

    def _mark(self, turn_bytes: bytes) -> bytes:
        return hashlib.blake2b(turn_bytes, key=self._secret, digest_size=18).digest()
