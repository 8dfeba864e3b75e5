"""Building apart from the rest: exporters and quantisers talk, draw bars, and change what the whole process shares."""

from __future__ import annotations

import ctypes
import io
import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import numpy as np
import torch

_alone = threading.RLock()


@contextmanager
def isolated() -> Iterator[None]:
    """Nothing is printed, logged or warned of in here, and the process is as before in the end.

    That is, its logging, random states, signals, environment and search path for modules. One thread at a time, since
    all of that belongs to the process.
    """
    with (
        _alone,
        _logging_kept(),
        _random_states_kept(),
        _environment_kept(),
        signal_stack_kept(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield


@contextmanager
def _logging_kept() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers, kind, threshold = root.level, root.handlers[:], logging.getLoggerClass(), root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(threshold)
        logging.setLoggerClass(kind)
        root.setLevel(level)
        root.handlers[:] = handlers


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore environment variables and sys.path.

    ONNX Runtime's quantiser and NNCF extend sys.path, and the former imports modules with names as plain as float16
    from there: these are taken out of sys.modules too, where they would be found in place of the user's own.
    """
    variables, path, modules = dict(os.environ), list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        added = tuple(folder for folder in sys.path if folder not in path and "onnxruntime" in folder)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            origin = getattr(sys.modules[name], "__file__", None)
            if "." not in name and added and origin and origin.startswith(added):
                del sys.modules[name]
        for name in set(os.environ) - set(variables):
            del os.environ[name]
        os.environ.update(variables)


class SignalStack(ctypes.Structure):
    """stack_t of Linux's signal.h."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_sigaltstack = ctypes.CDLL(None).sigaltstack if sys.platform.startswith("linux") else None


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Put the thread's alternate signal stack back.

    Where the processor has AMX, OpenVINO sets one up whenever it computes, in memory that it gives back some time
    later: the next Ctrl-C, which Python handles on that stack, would end the process or write over others' memory.
    """
    before = SignalStack()
    if _sigaltstack is None or _sigaltstack(None, ctypes.byref(before)) != 0:
        yield
        return
    try:
        yield
    finally:
        _sigaltstack(ctypes.byref(before), None)


@contextmanager
def _random_states_kept() -> Iterator[None]:
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - saved, never drawn from
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
