"""What `pip` installs: the wheel has the recipes and the command works from it; the ranges have one home."""

import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tfperf.measure.results import read_result

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built as pip builds it, from a copy so that nothing is left behind here."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    (path,) = folder.glob("*.whl")
    return path


def test_it_holds_every_module_every_source_in_c_and_every_recipe(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = [*(ROOT / "tfperf").rglob("*.py"), *(ROOT / "tfperf").rglob("native/*.*")]
    modules = {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".pyc"}
    recipes = {f"tfperf/_recipes/{path.name}" for path in (ROOT / "recipes").glob("*.py")}
    assert modules | recipes | {"tfperf/py.typed"} <= inside
    assert not {name.split("/")[0] for name in inside if "dist-info" not in name} - {"tfperf"}


def test_list_and_run_work_from_the_wheel(wheel, tmp_path):
    installed = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(installed)  # what pip does with a wheel of pure Python

    def tfperf(*arguments):
        code = f"import sys; sys.path.insert(0, {str(installed)!r}); from tfperf.cli import main; main()"
        environment = os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "200"}
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=True
        )

    assert "hybridize" in tfperf("list").stdout
    tfperf("run", "hybridize", "--quick")
    assert read_result(tmp_path / "results" / "hybridize.json").name == "hybridize"
    where = "import tfperf, tfperf.cookbook as c; print(tfperf.__file__, *c.list_recipes().values())"
    paths = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(installed)!r}); {where}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    ).stdout.split()  # fmt: skip
    assert all(path.startswith(str(installed)) for path in paths), "the wheel was tried, not the checkout"


def requirement_lines():
    return [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]


def test_every_requirement_is_a_range_with_a_reason():
    for line in requirement_lines():
        name, _, reason = line.partition("#")
        assert len(reason.split()) > 3, f"why is {name.strip()} what it is?"
        if not line.startswith("-e"):
            operators = {specifier.operator for specifier in Requirement(name).specifier}
            assert operators == {">=", "<"}, line


def test_the_package_requires_what_requirements_txt_says():
    said = {str(Requirement(line.partition("#")[0])) for line in requirement_lines() if not line.startswith("-e")}
    required = {str(Requirement(text)) for text in metadata.requires("tfperf") if "extra ==" not in text}
    assert required == said


def test_the_pinned_versions_are_in_their_ranges():
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    pins = {canonicalize_name(name): version for name, version in lines}
    for text in metadata.requires("tfperf"):
        requirement = Requirement(text)
        if requirement.name != "tfperf":
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), text
