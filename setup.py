"""Builds the optional noise kernel; everything else stands in pyproject.toml."""

from setuptools import Extension, setup

# Without a compiler the build goes on without it, and numpy makes the same noise, bit for bit, more slowly.
setup(
    ext_modules=[
        Extension(
            "smoothcert._grid_kernel",
            ["src/smoothcert/_grid_kernel.c"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
