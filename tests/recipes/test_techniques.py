"""The technique of every recipe runs when it is pasted into an empty file, where tfperf is not installed.

The file holds the recipe's own import lines of TensorFlow, Keras, NumPy (and `tfperf.parallel.horovod`), the functions
that its header names, and then a small program that uses them: tests/recipes/techniques/NAME.py. It runs in a network
of its own with loopback alone, because TensorFlow's servers listen on all interfaces.
"""

import ast
import contextlib
import os
import re
import sys
from pathlib import Path

import pytest

from tests.fixtures.forking import ForkServer
from tfperf.cookbook import list_recipes, read_header
from tfperf.parallel.private_network import leave_network

RECIPES = list_recipes()
PROGRAMS = Path(__file__).parent / "techniques"
DEADLINE = 120
WITHOUT_TFPERF = "import sys\nsys.modules['tfperf'] = None  # makes every import of it fail\n"
PLAIN = ("tensorflow", "keras", "numpy")
HOROVOD = "tfperf.parallel.horovod"


def pasted(name):
    """The import lines that a reader copies, and the functions that the header names."""
    text = RECIPES[name].read_text()
    shown, parts = read_header(RECIPES[name]).shows, []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            parts += [
                f"import {a.name}" + (f" as {a.asname}" if a.asname else "") for a in node.names if may_copy(a.name)
            ]
        elif isinstance(node, ast.ImportFrom) and may_copy(node.module):
            parts.append(ast.get_source_segment(text, node))
        elif getattr(node, "name", None) in shown:
            parts += [f"@{ast.get_source_segment(text, one)}" for one in node.decorator_list]
            parts.append(ast.get_source_segment(text, node))
    return "\n".join(parts)


def may_copy(module):
    """Whether the line that imports this module is copied along."""
    root = module.partition(".")[0]
    return root in PLAIN or root in sys.stdlib_module_names or module == HOROVOD


def leave_network_if_allowed():
    """Leave it, in the process that starts the programs."""
    with contextlib.suppress(OSError):
        leave_network()


@pytest.fixture(scope="module")
def server():
    """What starts the programs."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    with ForkServer(env=environment, preexec_fn=leave_network_if_allowed) as server:
        yield server


def test_every_recipe_has_a_program_that_uses_its_technique():
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(RECIPES)


@pytest.mark.timeout(DEADLINE + 20)
@pytest.mark.parametrize("name", RECIPES)
def test_the_technique_runs_in_an_empty_file(server, name, tmp_path):
    program, technique = (PROGRAMS / f"{name}.py").read_text(), pasted(name)
    for function in read_header(RECIPES[name]).shows:
        assert re.search(rf"\b{function}\b", program), f"{function} is not used"
    file = tmp_path / "pasted.py"
    begins = "" if HOROVOD in technique else WITHOUT_TFPERF
    file.write_text("\n\n".join([begins, technique, program]))
    process = server.run(file, folder=tmp_path, deadline=DEADLINE)
    assert process.returncode == 0, process.stderr[-2000:]
