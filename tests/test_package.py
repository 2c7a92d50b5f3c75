"""The package as a whole: what leans on what, what importing it loads, what is public."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tfperf

PACKAGE = Path(tfperf.__file__).parent
ROOMS = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}

FOUNDATION = {"caching", "errors", "files", "importing", "system"}
"""Modules of the standard library and each other alone, which every room may use; one loads TensorFlow, when asked."""

MAY_LEAN_ON = {
    "nets": set(),
    "processes": set(),
    "native": {"processes"},
    "exports": {"measure", "nets"},
    "engines": {"exports", "measure", "native", "nets", "processes"},
    "trials": {"data", "engines", "exports", "measure", "nets", "processes", "training"},
    "hardware": {"exports", "measure", "processes"},
    "data": {"processes"},
    "measure": {"native", "processes"},
    "search": {"engines", "exports", "measure", "training", "trials"},
    "report": {"engines", "explaining", "hardware", "measure", "search", "training", "trials"},
    "training": {"data", "exports", "hardware", "measure", "native"},
    "tuning": {"data", "engines", "exports", "measure", "nets", "report", "search", "training", "trials"},
    "cookbook": {"data", "exports", "measure", "nets", "report"},
    "parallel": {"native", "processes"},
    "scaling": {"exports", "hardware", "measure", "parallel", "processes", "report"},
    "doctor": {"data", "engines", "measure", "parallel", "processes"},
    "explaining": {"engines", "exports", "hardware", "measure", "training"},
    "cli": {
        "cookbook",
        "data",
        "doctor",
        "engines",
        "explaining",
        "exports",
        "hardware",
        "measure",
        "parallel",
        "processes",
        "report",
        "scaling",
        "search",
        "training",
        "trials",
        "tuning",
    },
}
"""Room -> the rooms below it: the order of the design. A new room is entered here with its reason in the commit."""

STARTS = {"fork", "forkpty", "posix_spawn", "posix_spawnp", "create_subprocess_exec", "create_subprocess_shell"}
"""Calls that start a process, beside those of `subprocess`; `multiprocessing` starts functions in processes."""

THIRD_PARTY_OF_MEASURE = {"numpy", "scipy", "psutil", "pydantic"}


def imported_modules(path):
    """Absolute names of everything that a file imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which room is meant"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_used_by(path):
    """The rooms of tfperf that a file imports from."""
    names = (name.split(".") for name in imported_modules(path))
    return {parts[1] for parts in names if parts[0] == "tfperf" and len(parts) > 1 and parts[1] in ROOMS}


def test_every_room_has_its_place_in_the_order():
    assert set(MAY_LEAN_ON) == ROOMS


@pytest.mark.parametrize("room", sorted(MAY_LEAN_ON))
def test_rooms_lean_only_on_those_below(room):
    for path in (PACKAGE / room).rglob("*.py"):
        wrong = rooms_used_by(path) - MAY_LEAN_ON[room] - {room}
        assert not wrong, f"{path.relative_to(PACKAGE)} leans on {', '.join(sorted(wrong))}"


def test_the_order_has_no_circle():
    def below(room, seen=()):
        assert room not in seen, f"a circle: {' -> '.join([*seen, room])}"
        for lower in MAY_LEAN_ON[room]:
            below(lower, (*seen, room))

    for room in MAY_LEAN_ON:
        below(room)


def test_the_check_sees_imports_inside_functions(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from tfperf.cli import main\n    import tfperf.report.tables\n")
    assert rooms_used_by(file) == {"cli", "report"}


def test_measure_uses_few_libraries_and_no_tensorflow():
    for path in (PACKAGE / "measure").rglob("*.py"):
        tops = {name.split(".")[0] for name in imported_modules(path)}
        foreign = tops - set(sys.stdlib_module_names) - THIRD_PARTY_OF_MEASURE - {"tfperf"}
        assert not foreign, f"{path.name} imports {', '.join(sorted(foreign))}"


@pytest.mark.parametrize("module", sorted(FOUNDATION))
def test_the_foundation_uses_the_standard_library_and_itself_alone(module):
    parts = [name.split(".") for name in imported_modules(PACKAGE / f"{module}.py")]
    assert {part[0] for part in parts} <= {*sys.stdlib_module_names, "tfperf", "tensorflow"}
    assert {part[1] for part in parts if part[0] == "tfperf"} <= FOUNDATION


def test_all_processes_are_started_in_one_place():
    starts = {
        (path.relative_to(PACKAGE).as_posix(), node.func.attr)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (ast.unparse(node.func.value) in {"subprocess", "psutil", "pty"} or node.func.attr in STARTS)
        and node.func.attr in STARTS | {"run", "call", "check_call", "check_output", "Popen"}
    }
    assert starts == {("processes/child_process.py", "Popen"), ("processes/keeper.py", "fork")}
    assert not any("from subprocess" in path.read_text() for path in PACKAGE.rglob("*.py"))


def test_no_class_has_the_name_of_another():
    """A name with two meanings must be read twice; modules of one protocol each may have private ones alike."""
    homes = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_the_package_never_imports_recipes():
    for path in PACKAGE.rglob("*.py"):
        assert not any(name.split(".")[0] == "recipes" for name in imported_modules(path)), path


@pytest.mark.parametrize(
    "module",
    [
        "tfperf",
        "tfperf.cli",
        "tfperf.data",
        "tfperf.doctor",
        "tfperf.explaining",
        "tfperf.exports",
        "tfperf.measure",
        "tfperf.nets",
        "tfperf.parallel",
        "tfperf.parallel.horovod",
        "tfperf.parallel.horovod_build",
        "tfperf.parallel.launch",
        "tfperf.processes",
        "tfperf.parallel.rehearsal",
        "tfperf.parallel.spark",
        "tfperf.parallel.splitting",
        "tfperf.scaling",
        "tfperf.trials",
    ],
)
def test_importing_does_not_import_tensorflow(module):
    code = f"import sys, {module}; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_the_package_imports_no_numpy():
    foundation = ", ".join(f"tfperf.{module}" for module in sorted(FOUNDATION))
    code = f"import sys, tfperf, {foundation}; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", tfperf.__all__)
def test_every_public_name_is_there_and_described(name):
    value = getattr(tfperf, name)
    assert value.__doc__
    assert name in dir(tfperf)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tfperf.nonsense


def test_every_room_exports_what_it_says():
    for room in ROOMS:
        module = importlib.import_module(f"tfperf.{room}")
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"tfperf.{room}.{name}"
