"""Random numbers that depend on a seed, what they are for and a number alone."""

from __future__ import annotations

import hashlib

import torch


def generator_for(seed: int, purpose: str, number: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose at one step or epoch, or for one input: resuming needs no other state."""
    digest = hashlib.blake2b(f"{seed}\0{purpose}\0{number}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)
