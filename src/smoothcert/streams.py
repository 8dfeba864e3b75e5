"""Random bits that depend only on (key, question, input, stage), never on batch size, device or the order of work.

The bits come from Philox, a counter-based generator (Salmon et al. 2011): any place of a stream can be
reached at once, streams of different questions, inputs and stages have different 128-bit keys, and blocks of one
stream different counters, so no two of them overlap, whichever process or thread draws them. No global
random state is read or written.

The question is the procedure with all its settings. Without it in the name, two procedures would see the same noise,
and a label that one of them chose would be tested by the other on the very draws that chose it.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smoothcert.errors import ConfigError

KEY_BYTES = 32
STREAM_NAMING = 2
"""How streams are named; runs record it. 1: (input, stage), before version 0.2. 2: (question, input, stage)."""


def make_key(seed: int | None) -> bytes:
    """A run's key: from the operating system, or derived from `seed` to repeat a run."""
    if seed is None:
        return secrets.token_bytes(KEY_BYTES)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"Expected `seed` to be a whole number >= 0 or None, got {seed!r}.")
    return hashlib.sha256(f"smoothcert seed {seed}".encode()).digest()


def parse_key(text: str) -> bytes:
    """The key that a result shows in hexadecimal."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"Expected `key` to be {2 * KEY_BYTES} hexadecimal digits, got {text!r}.")
    return key


@dataclass(frozen=True, slots=True)
class Stream:
    """The bits of one stage of one input under one key, drawn to answer one question."""

    key: bytes
    input_id: str
    stage: int
    question: str = ""

    def _digest(self, size: int, person: bytes = b"") -> bytes:
        """A keyed hash of the stream's name; different for every `person`, which says what the bits are for."""
        question = f"{self.question}\0" if self.question else ""
        name = f"{question}{self.input_id}\0{self.stage}".encode()
        return hashlib.blake2b(name, key=self.key, digest_size=size, person=person).digest()

    @property
    def philox_key(self) -> bytes:
        """The 128-bit key of this stream's generator."""
        return self._digest(16)

    @property
    def model_seed(self) -> int:
        """A seed for a base classifier that is random on purpose, from bits that no noise is made of."""
        return int.from_bytes(self._digest(8, b"model"), "little") >> 1

    def sample(self, n: int, count: int) -> tuple[int, ...]:
        """`count` different numbers below `n`, in ascending order; from bits that no noise is made of."""
        if count >= n:
            return tuple(range(n))
        key = np.frombuffer(self._digest(16, b"sample"), "<u8")
        generator = np.random.Generator(np.random.Philox(key=key))
        return tuple(sorted(generator.choice(n, count, replace=False, shuffle=False).tolist()))

    def words(self, block: int, lane: int, count: int) -> npt.NDArray[np.uint64]:
        """The first `count` 64-bit words of a lane of a block; a longer request begins with a shorter one."""
        key, counter = np.frombuffer(self.philox_key, "<u8"), np.array([0, lane, block, 0], np.uint64)
        return np.asarray(np.random.Philox(key=key, counter=counter).random_raw(count), np.uint64)
