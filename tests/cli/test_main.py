from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

import smoothcert
from smoothcert import cli
from smoothcert.cli import main
from smoothcert.errors import ModelError


def test_help_names_the_commands_and_ends_with_examples(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "demo" in out
    assert "plan" in out
    assert out.rstrip().endswith("smoothcert --version")


def test_without_arguments_the_help_is_printed(capsys):
    assert main([]) == 0
    without = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == without


@pytest.mark.parametrize("command", ["demo", "plan"])
def test_the_help_of_a_command_explains_every_setting_and_ends_with_its_examples(capsys, command):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    for flag in ("--alpha", "--n ", "--out", "--config FILE"):
        assert flag in out
    assert "Probability with which a certificate may be false" in out
    assert f"examples:\n  smoothcert {command}" in out


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_the_packages(capsys, flag):
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"smoothcert {smoothcert.__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "--sigma", "abc"],
        ["plan", "--n", "2.5"],
        ["demo", "--epochs", "many"],
        ["demo", "--sigmas", "0.1", "x"],
        ["demo", "--no-such-flag", "1"],
        ["no-such-command"],
        ["plan", "--sigma"],
        ["plan", "--config"],
    ],
)
def test_what_cannot_be_parsed_exits_with_2_and_is_named(capsys, argv):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    bad = {"abc", "2.5", "many", "x", "--no-such-flag", "no-such-command", "--sigma", "--config"} & set(argv)
    assert any(word in captured.err for word in bad)
    assert "Traceback" not in captured.err


class Failing:
    """Stands for a command."""

    error: BaseException

    def run(self, _console):
        raise self.error


def run_failing(monkeypatch, error):
    command = Failing()
    command.error = error
    monkeypatch.setattr(cli, "_parse", lambda _argv: command)
    return main(["anything"])


def test_an_error_of_ours_is_one_line_and_its_exit_code(monkeypatch, capsys):
    assert run_failing(monkeypatch, ModelError("two\nlines")) == 3
    assert capsys.readouterr().err == "error: two lines\n"


def test_an_interruption_is_one_line_and_130(monkeypatch, capsys):
    assert run_failing(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_a_full_disk_is_one_line_and_6(monkeypatch, capsys):
    assert run_failing(monkeypatch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) == 6
    assert capsys.readouterr().err == "error: cannot write the output: [Errno 28] No space left on device\n"


def test_an_error_that_is_not_ours_is_not_hidden(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        run_failing(monkeypatch, ZeroDivisionError())


def run(*argv: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "smoothcert", *argv], text=True, check=False, **options)


def test_a_reader_that_closes_early_is_no_drama():
    read, write = os.pipe()
    os.close(read)
    try:
        done = run("plan", stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert done.returncode != 0
    assert done.stderr == ""


def test_standard_output_on_a_full_device_is_one_line_and_6():
    with open("/dev/full", "w") as full:
        done = run("--version", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 6
    assert done.stderr.splitlines() == ["error: cannot write the output: [Errno 28] No space left on device"]


def test_a_terminal_without_greek_letters_gets_question_marks():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run("plan", capture_output=True, env=environment)
    assert done.returncode == 0
    assert "? = 0.25" in done.stdout


def test_help_and_bad_settings_do_not_wait_for_torch():
    code = (
        "import sys\n"
        "from smoothcert.cli import main\n"
        "assert main(['demo', '--help']) == 0\n"
        "assert main(['demo', '--sigmas', '0']) == 2\n"
        "assert main(['plan']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
