"""One altered byte fails."""

import shutil

import numpy as np
import pytest

from tfperf.errors import ExportError
from tfperf.exports import export, verify
from tfperf.exports.manifest import MANIFEST, REFERENCE, paths_of


@pytest.fixture(scope="module")
def exported(tmp_path_factory, small):
    return export(small, tmp_path_factory.mktemp("exported"))


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "1")


def test_one_altered_byte_of_any_file_fails(copy):
    for path in [*paths_of(copy), MANIFEST]:
        content = (copy / path).read_bytes()
        for place in {0, len(content) // 2, len(content) - 1}:
            altered = bytearray(content)
            altered[place] ^= 1
            (copy / path).write_bytes(altered)
            with pytest.raises(ExportError, match="altered"):
                verify(copy)
        (copy / path).write_bytes(content)
    assert verify(copy).same_bits


def test_whitespace_in_the_manifest_is_an_alteration(copy):
    with (copy / MANIFEST).open("a") as file:
        file.write("\n")
    with pytest.raises(ExportError, match="altered"):
        verify(copy)


def test_a_missing_file_and_a_new_one_are_named(copy):
    (copy / "fingerprint.pb").unlink()
    (copy / "new").write_text("?")
    with pytest.raises(ExportError, match=r"fingerprint.pb is missing; new was not exported"):
        verify(copy)


def test_links_are_files_that_were_not_exported_or_lie_elsewhere(copy, tmp_path):
    (copy / "more").symlink_to("/usr")
    with pytest.raises(ExportError, match="more was not exported"):
        verify(copy)
    (copy / "more").unlink()
    shutil.move(copy / "saved_model.pb", tmp_path / "outside")
    (copy / "saved_model.pb").symlink_to(tmp_path / "outside")
    with pytest.raises(ExportError, match=r"saved_model.pb is a link out of the folder"):
        verify(copy)


def test_other_answers_fail_though_every_digest_holds(small, tmp_path, monkeypatch):
    monkeypatch.setattr("tfperf.exports.writing._answers", lambda *_: [np.ones((4, 4), "float32")])
    with pytest.raises(ExportError, match="gives other outputs"):
        verify(export(small, tmp_path))


@pytest.mark.parametrize("made", ["nothing", "a file", "an empty folder"])
def test_what_is_no_export_is_one_line(tmp_path, made):
    place = tmp_path / "x"
    if made == "a file":
        place.write_text("")
    if made == "an empty folder":
        place.mkdir()
    with pytest.raises(ExportError, match="expected"):
        verify(place)


def test_the_reference_holds_no_pickle(exported):
    with np.load(exported / REFERENCE, allow_pickle=False) as arrays:
        assert sorted(arrays) == ["inputs/features", "outputs/logits"]
