"""Radii and accuracies are printed by one function each, which rounds the safe way: no other code formats them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import smoothcert

SOURCE = Path(smoothcert.__file__).parent
PRINTERS = {SOURCE / "records.py", SOURCE / "stats" / "accuracy.py"}  # floor_decimal and floor_percent live here
FILES = sorted(set(SOURCE.rglob("*.py")) - PRINTERS)

ROUNDING = re.compile(r"[-+ ,0-9]*(\.[0-9]+)?[eEfFgG%n]$")  # a format that drops digits
CLAIM = re.compile(r"radi(us|i)|\bnorms?\b|accura|share|certified|abstain|percent|fraction|average|success|^acr$")
STYLE = re.compile(r"(width|left|bottom):$")  # a length in CSS, which nobody reads as a number


def names_in(node: ast.AST) -> list[str]:
    """The names of variables, attributes and keys in an expression."""
    found = []
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found.append(one.id)
        elif isinstance(one, ast.Attribute):
            found.append(one.attr)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found.append(one.value)
    return found


def is_percentage(node: ast.AST) -> bool:
    hundred = [one for one in ast.walk(node) if isinstance(one, ast.Constant) and one.value in (100, 100.0)]
    return any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult) for one in ast.walk(node)) and bool(hundred)


def is_claim(node: ast.AST) -> bool:
    return is_percentage(node) or any(CLAIM.search(name) for name in names_in(node))


def literal(node: ast.AST | None) -> str:
    """The constant parts of a format, with digits that are computed standing for one."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(str(one.value) if isinstance(one, ast.Constant) else "1" for one in node.values)


def formatted_claims(code: str) -> list[tuple[int, str]]:
    """Lines in which a radius or an accuracy is formatted with rounding, and how."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            before = ""
            for part in node.values:
                rounded = isinstance(part, ast.FormattedValue) and ROUNDING.search(literal(part.format_spec))
                if rounded and is_claim(part.value) and not STYLE.search(before):
                    found.append((part.lineno, ast.unparse(part.value)))
                before = part.value if isinstance(part, ast.Constant) else ""
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            by_format = name == "format" and any(map(is_claim, arguments)) and _rounds(node)
            by_numpy = name.startswith("format_float") and any(map(is_claim, arguments))
            if by_format or by_numpy:
                found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
            found += (
                [(node.lineno, ast.unparse(node))] if isinstance(node.left.value, str) and is_claim(node.right) else []
            )
    return found


def _rounds(call: ast.Call) -> bool:
    """Whether a call of format(value, spec) or "text".format(value) has a spec that rounds."""
    if isinstance(call.func, ast.Name):
        return any(isinstance(one, ast.Constant) and ROUNDING.search(str(one.value)) for one in call.args[1:])
    text = call.func.value
    specs = re.findall(r"\{[^{}:]*:([^{}]*)\}", text.value) if isinstance(text, ast.Constant) else []
    return any(ROUNDING.search(spec) for spec in specs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_other_code_formats_radii_or_accuracies(path):
    assert formatted_claims(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "code",
    [
        'f"{radius:.3f}"',
        "f\"within {row['radius']:.6g}\"",
        'f"{certificate.radius:g}"',
        'f"{radius:.{digits}f}"',
        'f"{100 * count / total:.1f} %"',
        'f"{share:.1%}"',
        'f"{one.norm:.2e}"',
        'f"{float(np.mean(accuracies)):.2f}"',
        'format(radius, ".3f")',
        '"{:.3f}".format(radius)',
        '"%.3f" % radius',
        "np.format_float_positional(radius, precision=3)",
    ],
)
def test_the_check_sees_every_way_to_format(code):
    assert len(formatted_claims(code)) == 1


@pytest.mark.parametrize("code", ['f"{sigma:g}"', 'f"{radius}"', 'f"{len(radii):,}"', 'f"width:{100 * a / b:.1f}%"'])
def test_the_check_lets_other_numbers_be(code):
    assert formatted_claims(code) == []


def test_the_page_has_one_function_for_each_too():
    script = (SOURCE / "report" / "page" / "assets" / "page.js").read_text("utf-8")
    names = [
        match.group(1) for match in re.finditer(r"const (\w+) = \([^)]*\) =>(?:(?!\n  const ).)*?toFixed", script, re.S)
    ]
    assert names == ["percent", "floored", "onScale"]
    assert "toPrecision" not in script
    assert "Math.round(100" not in script
