"""Files that are small on disk and large in memory, and a process in which to open them."""

import json
import subprocess
import sys
import zipfile

UNPACKED = 512 * 2**20
MOST_GROWTH = 160 * 2**20  # what opening any of them may add to the memory in use

CHILD = """
import json, resource, sys
from pathlib import Path
from smoothcert.errors import SmoothcertError
{setup}

def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 3 * 2**30,) * 2)  # for the machine's sake
for name, call in json.loads(sys.argv[1]).items():
    before = used()
    try:
        found = ["nothing", repr(eval(call))]
    except SmoothcertError as error:
        found = [type(error).__name__, str(error)]
    except BaseException as error:
        found = ["raw " + type(error).__name__, str(error)]
    print(json.dumps([name, *found, used() - before]))
"""


def outcomes(calls, setup):
    """What each call, an expression, ended in: (class of the error, its message, growth of the memory in bytes)."""
    command = [sys.executable, "-c", CHILD.format(setup=setup), json.dumps(calls)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(calls), done.stderr
    return {name: rest for name, *rest in found}


def assert_refused(outcome, kind, said):
    """The call ended in an error of ours that says this, without filling the memory first."""
    error, message, growth = outcome
    assert error == kind, message
    assert said in message
    assert len(message) < 1000
    assert growth < MOST_GROWTH


def write_zeros(archive, name, size=UNPACKED, head=b"", method=zipfile.ZIP_DEFLATED):
    """Add a member of `head` and zeros, `size` bytes in all, to a zip archive."""
    member = zipfile.ZipInfo(name)
    member.compress_type = method
    chunk = bytes(2**20)
    with archive.open(member, "w", force_zip64=True) as file:
        file.write(head)
        left = size - len(head)
        while left:
            left -= file.write(chunk[:left])
