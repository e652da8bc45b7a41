"""The mutants that are made of a function."""

from __future__ import annotations

import ast

from .mutants import find_mutants

SOURCE = '''
"""Text with a number 3."""
LIMIT = 3

class A:
    def f(self, x: int, y: int = 2) -> int:
        """Text with a number 4."""
        if x < 5 and not y:
            raise ValueError(f"{x + 1} is wrong")
        self.z = g(x, y)
        return x + 7
'''


def test_every_change_is_made_once() -> None:
    found = [(mutant.line, mutant.change) for mutant, _, _ in find_mutants("a.py", SOURCE)]
    assert found == [
        (8, "if x < 5 and (not y) [negated]"),
        (8, "x < 5 and (not y) [And -> Or]"),
        (8, "x < 5 [Lt -> LtE]"),
        (8, "5 -> 6"),
        (8, "5 -> 4"),
        (8, "not y -> y"),
        (9, "raise ValueError(f'{x + 1} is wrong') [removed]"),
        (10, "self.z = g(x, y) [removed]"),
        (10, "g(x, y) [arguments swapped]"),
        (11, "return x + 7 [removed]"),
        (11, "x + 7 [Add -> Sub]"),
        (11, "7 -> 8"),
        (11, "7 -> 6"),
    ]


def outcomes(tree: ast.Module) -> list[object]:
    scope: dict[str, object] = {"g": lambda x, y: (x, y)}
    exec(compile(ast.fix_missing_locations(tree), "a.py", "exec"), scope)
    a = scope["A"]()  # type: ignore[operator]
    found: list[object] = []
    for x, y in ((1, 2), (5, 0), (4, 0), (9, 1)):
        try:
            found.append((a.f(x, y), vars(a).pop("z", None)))
        except ValueError:
            found.append("error")
    return found


def test_every_change_matters() -> None:
    before = outcomes(ast.parse(SOURCE))
    for number in range(13):
        mutant, tree, apply = list(find_mutants("a.py", SOURCE))[number]
        apply()
        assert outcomes(tree) != before, mutant.change
