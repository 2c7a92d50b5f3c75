"""Text files are read and written as UTF-8, whatever the locale says; ruff's PLW1514 sees only a part of the calls."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(path for room in ("tfperf", "recipes", "benchmarks") for path in (ROOT / room).rglob("*.py"))
OTHERS = ("os", "zipfile", "archive", "tarfile", "webbrowser", "process", "worker")
"""What has an `open` that reads no text."""


def without_encoding(tree):
    """The lines of calls that read or write text in the locale's encoding."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not any(one.arg in ("encoding", None) for one in node.keywords):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            of_whom = ast.unparse(node.func).rpartition(".")[0]
            arguments = [*node.args, *(one.value for one in node.keywords)]
            modes = [one.value for one in arguments if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            as_text = name == "open" and of_whom not in OTHERS and not any("b" in mode for mode in modes)
            if as_text or (name, len(node.args)) in (("read_text", 0), ("write_text", 1)):
                yield node.lineno


def test_every_text_file_is_utf_8():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in FILES
        for line in without_encoding(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert wrong == []


def test_what_it_looks_for_is_found():
    wrong = ("p.read_text()", "p.write_text('x')", "open(p)", "open(p, 'w')", "p.open('a')", "p.open()")
    right = ("p.read_text(encoding='utf-8')", "p.read_text('utf-8')", "open(p, 'rb')", "p.open('wb')", "os.open(p, 1)")
    for code in wrong:
        assert list(without_encoding(ast.parse(code))) == [1], code
    for code in right:
        assert list(without_encoding(ast.parse(code))) == [], code
