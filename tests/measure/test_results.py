"""Result files: what was written comes back equal, and whatever else comes is a short error in one line."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tfperf.errors import ResultFileError
from tfperf.measure import results
from tfperf.measure.agreement import check_agreement
from tfperf.measure.comparison import Comparison, Ratio, Verdict
from tfperf.measure.measurement import Doubt, Stop
from tfperf.measure.results import LARGEST_FILE, Result, read_result, write_result

LONGEST_MESSAGE = 400


@pytest.fixture
def result(make_measurement, environment) -> Result:
    """One of everything."""
    doubt = Doubt(name="noise", words="it is loud", advice="hush it")
    eager = make_measurement([0.002, 0.0021, 0.0019], name="eager", warm_up_seconds=(0.5, 0.1), doubts=(doubt,))
    graph = make_measurement([0.001, 1 / 3, 1e-300], name="gräph")
    ratio = Ratio(baseline="eager", candidate="gräph", estimate=2.0, low=1.9, high=2.1, verdict=Verdict.FASTER)
    return Result(
        name="hybridize",
        dataset="digits, of scikit-learn",
        environment=environment,
        measurements=(eager,),
        comparisons=(
            Comparison(
                measurements=(eager, graph),
                ratios=(ratio,),
                rounds=3,
                margin=0.01,
                stopped=Stop.PRECISION,
                doubts=(doubt,),
            ),
        ),
        agreements=(check_agreement("graph", [1.0, 2.0], [1.0, 2.0]),),
        facts={"accuracy": 0.5, "images": 3, "whole": 2.0, "kind": "real", "cached": True, "most": 2**63 - 1},
        meaning=("The graph is twice as fast.",),
    )


@pytest.fixture
def file(tmp_path: Path, result: Result) -> Path:
    path = tmp_path / "result.json"
    write_result(path, result)
    return path


def refused(path: Path) -> str:
    """The message with which a file is refused: one short line that a terminal can show."""
    with pytest.raises(ResultFileError) as caught:
        read_result(path)
    message = str(caught.value)
    assert message.isprintable(), repr(message)
    assert len(message) < LONGEST_MESSAGE
    return message


def refused_with(path: Path, change: object) -> str:
    """The message with which the file is refused after a change of its document."""
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return refused(path)


# ---------------------------------------------------------------- round trip


def test_what_is_written_comes_back_equal(file: Path, result: Result) -> None:
    again = read_result(file)
    assert again == result
    assert type(again.facts["whole"]) is float
    assert type(again.facts["cached"]) is bool
    assert again.comparisons[0].ratios[0].verdict is Verdict.FASTER


def test_every_bit_of_a_sample_comes_back(tmp_path: Path, make_measurement, environment) -> None:
    seconds = (math.pi * 1e-3, math.nextafter(0.1, 1), 5e-324, 1e300)
    written = Result(name="bits", environment=environment, measurements=(make_measurement(seconds),))
    write_result(tmp_path / "r.json", written)
    assert read_result(tmp_path / "r.json").measurements[0].seconds == seconds


def test_the_file_is_json_that_says_what_it_is(file: Path) -> None:
    document = json.loads(file.read_bytes())
    assert (document["format"], document["version"]) == ("tfperf result", 1)
    assert file.read_bytes().endswith(b"}\n")


def test_folders_on_the_way_are_made(tmp_path: Path, result: Result) -> None:
    write_result(tmp_path / "a" / "b" / "r.json", result)
    assert read_result(tmp_path / "a" / "b" / "r.json") == result


def test_runs_of_one_name_are_found_in_comparisons_too(result: Result) -> None:
    assert {name: len(runs) for name, runs in result.runs.items()} == {"eager": 2, "gräph": 1}


def test_the_environment_is_this_one_unless_told() -> None:
    assert Result(name="here").environment.python == ".".join(map(str, sys.version_info[:3]))


# ---------------------------------------------------------------- whole or not at all


def test_a_full_disk_leaves_the_old_file(file: Path, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultFileError, match=r"cannot write the result file .*result.json: No space left on device"):
        write_result(file, result.model_copy(update={"name": "other"}))
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_disk_that_is_full_at_any_moment_leaves_the_old_file(small_disk, result: Result) -> None:
    path, failed = small_disk.root / "results" / "a.json", 0
    write_result(path, old := result.model_copy(update={"name": "old"}))
    for full in small_disk.fuller_to_emptier():
        try:
            write_result(path, result)
        except ResultFileError as error:
            failed, told = failed + 1, error
            assert str(told) == f"cannot write the result file {path}: No space left on device", full
            assert read_result(path) == old, full
        else:
            assert read_result(path) == result, full
            small_disk.leave()
            write_result(path, old)
        assert list(path.parent.iterdir()) == [path], full
    assert failed > 1


def test_a_killed_writer_leaves_the_old_or_the_new_file(tmp_path: Path, result: Result) -> None:
    path = tmp_path / "r.json"
    write_result(path, result)
    program = (
        "import itertools, sys\n"
        "from tfperf.measure.results import read_result, write_result\n"
        "result = read_result(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "for i in itertools.count():\n"
        "    write_result(sys.argv[1], result.model_copy(update={'meaning': (str(i),) * 20_000}))\n"
    )
    names = set()
    for attempt in range(8):
        writer = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
        try:
            writer.stdout.readline()  # it writes from here on, without pause
            # Not a wait for something to happen: the moment of death shall differ from one to the next.
            deadline = time.perf_counter() + 0.003 * attempt
            while time.perf_counter() < deadline:
                pass
        finally:
            writer.kill()
            writer.wait()
            writer.stdout.close()
        survivor = read_result(path)
        assert len(set(survivor.meaning)) == 1
        names.update(entry.name for entry in tmp_path.iterdir())
    assert {name for name in names if not (name.startswith(".") and name.endswith(".part"))} == {"r.json"}


@pytest.mark.parametrize("name", ["folder", "file.txt/r.json", "null\0.json"])
def test_where_nothing_can_be_written(tmp_path: Path, result: Result, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("in the way")
    with pytest.raises(ResultFileError, match="cannot write the result file") as caught:
        write_result(tmp_path / name, result)
    assert str(caught.value).isprintable()


# ---------------------------------------------------------------- what is refused


def test_truncated_anywhere(tmp_path: Path, environment) -> None:
    path = tmp_path / "r.json"
    write_result(path, Result(name="small", environment=environment))
    content = path.read_bytes().rstrip()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        refused(path)


@pytest.mark.parametrize("version", [0, -1, 2, 10**30])
def test_other_versions(file: Path, version: int) -> None:
    message = refused_with(file, lambda d: d.update(version=version))
    assert ("an older" if version < 1 else "a newer") in message
    assert "expected version 1" in message


@pytest.mark.parametrize("version", ["1", 1.0, 1.5, None, True, [1]])
def test_versions_of_the_wrong_type(file: Path, version: object) -> None:
    assert "version" in refused_with(file, lambda d: d.update(version=version))


def test_another_format(file: Path) -> None:
    assert "expected the format 'tfperf result'" in refused_with(file, lambda d: d.update(format="\x1b[2J"))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("old", ["0.0021", "0.01", "2.0"])
def test_what_is_no_number(file: Path, constant: str, old: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, constant), encoding="utf-8")
    refused(file)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 3),
        ("name", None),
        ("name", ""),
        ("name", "x" * 201),
        ("name", "two\nlines"),
        ("name", "\x1b[31mred"),
        ("name", "right to left \u202e"),
        ("created", 5),
        ("created", "x" * 41),
        ("measurements", {}),
        ("measurements", [None]),
        ("facts", []),
        ("facts", {"a": None}),
        ("facts", {"a": {"b": 1}}),
        ("facts", {"a": 10**400}),
        ("facts", {"\x1b[2J": 1}),
        ("meaning", "a text"),
        ("meaning", ["\x1b[2J"]),
        ("environment", None),
    ],
)
def test_wrong_values(file: Path, field: str, value: object) -> None:
    refused_with(file, lambda d: d.update({field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", []),
        ("seconds", [0]),
        ("seconds", [-1.0]),
        ("seconds", ["0.1"]),
        ("seconds", [True]),
        ("calls_per_sample", 1.0),
        ("calls_per_sample", "1"),
        ("calls_per_sample", 0),
        ("samples_per_turn", 2),
        ("samples_per_turn", 10**18),
        ("stopped", "because"),
        ("memory", {}),
    ],
)
def test_wrong_values_in_a_measurement(file: Path, field: str, value: object) -> None:
    refused_with(file, lambda d: d["measurements"][0].update({field: value}))


def test_fields_that_are_missing_or_unknown(file: Path, result: Result) -> None:
    for field in Result.model_fields:
        if field in ("format", "version", "name"):
            write_result(file, result)
            assert field in refused_with(file, lambda d, field=field: d.pop(field))
    write_result(file, result)
    assert "surprise" in refused_with(file, lambda d: d.update(surprise=1))
    write_result(file, result)
    refused_with(file, lambda d: d["measurements"][0].pop("first_call_seconds"))


def test_every_field_must_be_there(file: Path, result: Result) -> None:
    for field in ("created", "environment", "measurements", "comparisons", "agreements", "facts", "meaning", "dataset"):
        write_result(file, result)
        refused_with(file, lambda d, field=field: d.pop(field))


@pytest.mark.parametrize("key", ["\x1b[2Jgone", "two\nlines", "\u202eback", "x" * 5000])
def test_a_hostile_key_does_not_reach_the_terminal(file: Path, key: str) -> None:
    refused_with(file, lambda d: d.update({key: 1}))


@pytest.mark.parametrize("key", ["\x1b[2Jgone", "two\nlines"])
def test_a_hostile_name_of_a_file_does_not_reach_the_terminal(tmp_path: Path, key: str) -> None:
    refused(tmp_path / key)


@pytest.mark.parametrize("field", ["cpu", "system", "python"])
def test_control_characters_in_the_environment(file: Path, field: str) -> None:
    refused_with(file, lambda d: d["environment"].update({field: "\x1b[2J"}))


def test_control_characters_in_a_doubt(file: Path) -> None:
    refused_with(file, lambda d: d["measurements"][0]["doubts"][0].update(words="\x1b[2J"))


def test_control_characters_in_the_date(file: Path) -> None:
    refused_with(file, lambda d: d.update(created="\x1b[2J"))


@pytest.mark.parametrize("digits", [400, 4000, 100_000])
def test_giant_whole_numbers(file: Path, digits: int) -> None:
    # 400 digits already overflow a float, so whoever formats such a size would fall over it.
    text = (
        file.read_text(encoding="utf-8")
        .replace('"resident":2000', '"resident": 2000')
        .replace('"resident": 2000', '"resident": 1' + "0" * digits)
    )
    assert "0" * digits in text
    file.write_text(text, encoding="utf-8")
    refused(file)


def test_keys_that_come_twice(file: Path) -> None:
    # Which of the two counts is up to the reader; tfperf never writes it.
    file.write_text(file.read_text(encoding="utf-8").replace('"name"', '"name": "other", "name"', 1), encoding="utf-8")
    refused(file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"3",
        b'"tfperf result"',
        b"\x00" * 100,
        b"\xff\xfe{}",
        b'{"format": "\xff"}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"format": "tfperf result", "version": 1}',
        b"\x89PNG\r\n\x1a\n",
        b"\x80\x04\x95",
    ],
    ids=repr,
)
def test_what_is_no_result_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    refused(path)


def test_a_byte_order_mark(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    refused(file)


def test_something_after_the_end(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"{}")
    refused(file)


def test_deep_nesting_inside(file: Path) -> None:
    file.write_text(
        file.read_text(encoding="utf-8")
        .replace('"accuracy": 0.5', '"accuracy": ' + "[" * 100_000)
        .replace('"accuracy":0.5', '"accuracy":' + "[" * 100_000),
        encoding="utf-8",
    )
    refused(file)


# ---------------------------------------------------------------- what is no file to read


def test_no_file(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.json")


def test_a_folder(tmp_path: Path) -> None:
    assert "expected a regular file" in refused(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "expected a regular file" in refused(tmp_path / "pipe")


def test_a_device_without_end() -> None:
    assert "expected a regular file" in refused(Path("/dev/zero"))


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused(tmp_path / "a")


def test_a_null_character_in_the_path() -> None:
    with pytest.raises(ResultFileError, match="cannot read"):
        read_result("a\0b")


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    monkeypatch.setattr(Path, "read_bytes", None)
    assert "expected at most 67,108,864 bytes, found 67,108,865" in refused(path)


# ---------------------------------------------------------------- any document

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)
any_fixture = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(document=json_values)
@any_fixture
def test_any_document_is_a_result_or_a_result_file_error(tmp_path: Path, document: object) -> None:
    path = tmp_path / "any.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    refused(path)


@given(field=st.sampled_from(sorted(Result.model_fields)), value=json_values)
@any_fixture
def test_any_value_in_any_field(tmp_path: Path, environment, field: str, value: object) -> None:
    path = tmp_path / "any.json"
    write_result(path, Result(name="small", environment=environment))
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {field: value}))
    try:
        read = read_result(path)
    except ResultFileError:
        refused(path)
    else:
        write_result(path, read)
        assert read_result(path) == read


@given(content=st.binary(max_size=60))
@any_fixture
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.json"
    path.write_bytes(content)
    refused(path)


def test_a_result_cannot_hold_what_a_file_may_not() -> None:
    with pytest.raises(ValidationError):
        Result(name="r", facts={"loss": math.nan})


def test_each_version_has_a_line_in_the_history() -> None:
    for version in range(1, results.VERSION + 1):
        assert f"\n- {version}: " in results.__doc__
