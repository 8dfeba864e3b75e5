"""Types of settings that may be left out, without "None" all over a command's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

OptionalText = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")]
OptionalInts = Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="N ...", help_behavior_hint="")]
OptionalFloats = Annotated[tuple[float, ...] | None, tyro.conf.arg(metavar="X ...", help_behavior_hint="")]
Floats = Annotated[tuple[float, ...], tyro.conf.arg(metavar="X ...", help_behavior_hint="")]
PlanName = Literal["auto", "eager", "folded", "compile", "onnxruntime", "openvino"]
Precision = Literal["fp32", "bf16", "fp16", "int8"]
Effort = Annotated[Literal["quick", "balanced", "full"] | float, tyro.conf.arg(metavar="{quick,balanced,full}|X")]
