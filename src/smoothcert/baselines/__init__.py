"""Deterministic certificates of a base classifier itself, without noise: what smoothing is compared with."""
