"""What the README and docs/ say: their Python runs, their commands exist, their links lead somewhere."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tfperf.engines.catalog import ENGINES
from tfperf.engines.plan import PRECISIONS, TRANSFORMATIONS
from tfperf.nets import NAMES
from tfperf.search.question import OBJECTIVES

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md")))
}
PROGRAMS = [
    pytest.param(program, id=f"{name}-{number}")
    for name, path in PAGES.items()
    for number, program in enumerate(re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL))
]
BIN = Path(sys.executable).parent
README_LINES = 130
DEADLINE = 280


def commands(name):
    """The commands of tfperf and of make in the indented blocks of a page, without their comments."""
    lines = re.findall(r"^    (?:\$ )?((?:tfperf|make) .*)$", PAGES[name].read_text(), re.MULTILINE)
    return [line.partition(" #")[0].strip() for line in lines]


@pytest.mark.timeout(DEADLINE + 20)
@pytest.mark.parametrize("program", PROGRAMS)
def test_its_python_runs(program, tmp_path):
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    (tmp_path / "program.py").write_text(program)
    process = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE
    )
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.mark.parametrize("name", PAGES)
def test_its_commands_exist_with_these_flags(name):
    """Each command is asked for help, and each of its flags must be there."""
    for command in commands(name):
        words = shlex.split(command)
        if words[0] == "make":
            assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in words[1:])
            continue
        if "python" in words:  # what follows belongs to the script that is launched
            words = words[: words.index("python")]
        subcommand = [word for word in words[1:3] if word.isalpha() and word.islower()]
        known = help_of(*subcommand[:2]) if subcommand[0] == "horovod" else help_of(subcommand[0])
        if subcommand[0] == "run":
            known = help_of("run", "hybridize") + "--all"
        flags = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
        assert [flag for flag in flags if flag not in known] == [], command


def help_of(*command, cache={}):  # noqa: B006 - one process for each command
    """The help text of a command."""
    if command not in cache:
        process = subprocess.run(
            [BIN / "tfperf", *command, "--help"], capture_output=True, text=True, timeout=60, check=True
        )
        cache[command] = process.stdout
    return cache[command]


@pytest.mark.parametrize("name", PAGES)
def test_its_links_lead_to_files(name):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGES[name].read_text()):
        of_the_book = target.startswith("/")  # pages that it makes; tests/book looks at them
        assert "://" in target or of_the_book or (PAGES[name].parent / target).exists(), target


def test_the_readme_is_about_a_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.timeout(DEADLINE + 20)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=command)
        for command in commands("README.md")
        if not command.startswith(("make", "tfperf horovod install"))  # make calls this test
    ],
)
def test_the_readmes_commands_run(command, tmp_path):
    """They run as a newcomer types them, in a folder with their recipes and model, but each as short as it can be."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "my_model.py").write_text("import tfperf\n\n\ndef build():\n    return tfperf.get_net('mlp')\n")
    words = shlex.split(command)
    if words[1] in ("run", "launch"):
        words.append("--quick")
    if words[1] in ("tune", "explain"):
        words += ["--time-limit", "10"]
    words[0] = str(BIN / "tfperf")
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert process.returncode == 0, process.stderr[-2000:] + process.stdout[-1000:]


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(title):
    return ARCHITECTURE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("what", "names"),
    [("recipe", sorted(file.stem for file in (ROOT / "recipes").glob("*.py"))), ("net", NAMES)],
)
def test_what_is_there_was_added_as_the_list_says(what, names):
    """Each file that a step names is there for each recipe and net, and says their names where it must."""
    steps = section(f"How to add a {what}")
    files = re.findall(r"`((?:tfperf|recipes|tests)/[\w/]+\.py)`", steps)
    assert any("NAME" in file for file in files)
    for file, name in itertools.product(files, names):
        assert (ROOT / file.replace("NAME", name)).is_file()
    listing = ROOT / ("README.md" if what == "recipe" else "tfperf/nets/catalog.py")
    assert [name for name in names if name not in listing.read_text(encoding="utf-8")] == []


def test_the_way_of_a_tuning_passes_through_files_that_are_there():
    drawing = section("What happens in `tfperf tune mlp`")
    places = re.findall(r"^(\w+)/(\w+)? ", drawing, re.MULTILINE)
    assert len(places) == 7
    for room, module in places:
        assert (ROOT / "tfperf" / room / (f"{module}.py" if module else "__init__.py")).is_file()


@pytest.mark.parametrize("name", [*NAMES, *(one.name for one in ENGINES), *PRECISIONS, *TRANSFORMATIONS, *OBJECTIVES])
def test_what_options_of_tune_take_is_in_its_page(name):
    table = [line for line in PAGES["docs/tuning.md"].read_text().splitlines() if line.startswith("| ")]
    assert f"`{name}`" in "\n".join(table)
