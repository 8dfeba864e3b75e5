from typing import Any

def fill(
    out: Any,
    centre: Any,
    levels: float,
    steps: Any,
    below: Any,
    start: Any,
    low: Any,
    key: bytes,
    block: int,
) -> None: ...
