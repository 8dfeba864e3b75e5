"""Networks as graphs: what torch.export makes of them, which other runtimes take."""

from __future__ import annotations

from torch.export import Dim, ExportedProgram, export

from smoothcert.backends.interface import Source


def exported(source: Source, *, batch_size: int | None = None) -> ExportedProgram:
    """The network's graph for batches of one size, or by default of any.

    Unlike tracing, export refuses a network whose path depends on its inputs instead of taking one path for all.
    """
    if batch_size is not None:
        return export(source.network, (source.probes(batch_size),))
    return export(source.network, (source.probes(),), dynamic_shapes=({0: Dim("batch")},))
