"""`python -m smoothcert` is the command `smoothcert`."""

from smoothcert.cli import entry

if __name__ == "__main__":
    entry()
