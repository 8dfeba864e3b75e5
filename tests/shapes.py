"""A family of nothing in particular, to test registries with."""

from dataclasses import dataclass

from smoothcert.families import Family


@dataclass(frozen=True)
class Shape:
    """Anything with a size."""


@dataclass(frozen=True)
class Square(Shape):
    """Four equal sides.

    And four right angles.
    """

    name = "square"
    side: float
    filled: bool = False


@dataclass(frozen=True)
class Circle(Shape):
    summary = "Round."
    name = "circle"
    radius: int = 3


SHAPES = Family("shape", Shape)
SHAPES.register(Square)
SHAPES.register(Circle)
