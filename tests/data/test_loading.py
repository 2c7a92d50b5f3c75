"""load and obtain: the right source first, its name in the result, and never another one silently."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from tfperf.data import NAMES, load, loading, obtain
from tfperf.data.loading import load_set, locate, obtain_set
from tfperf.data.places import places
from tfperf.errors import DataError


def folders(sample, own_folders):
    return [place.folder for place in places(sample.spec, installed=own_folders / "usr")]


def test_sources_are_used_in_order_and_named(sample, own_folders):
    where = folders(sample, own_folders)
    labels = (
        "Keras cache",
        "Debian package dataset-sample",
        "unpacked Debian package dataset-sample",
        "tfperf cache",
    )
    for folder, label in reversed(list(zip(where, labels, strict=True))):  # each new one comes before the last
        sample.write(folder)
        found = locate(sample.spec, places(sample.spec, installed=own_folders / "usr"))
        assert found.source == f"{label}: {folder}"
        assert found.name == "sample"
        np.testing.assert_array_equal(found.train_images[..., 0], sample.arrays[0])


def test_nothing_anywhere_is_none(sample, own_folders):
    assert locate(sample.spec, places(sample.spec, installed=own_folders / "usr")) is None


def test_a_place_that_lacks_a_file_is_passed_over(sample, own_folders):
    keras, *_, own = folders(sample, own_folders)
    (sample.write(keras) / "test-labels.gz").unlink()
    sample.write(own)
    assert load_set(sample.spec).source == f"tfperf cache: {own}"


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("name", ["train-images.gz", "test-labels.gz"])
def test_a_corrupt_file_is_an_error_though_others_are_good(which, name, sample, own_folders):
    where = folders(sample, own_folders)
    for folder in where:
        sample.write(folder)
    for folder in where[:which]:
        (folder / name).unlink()  # this place is passed over, the next is corrupt, the others are good
    bad = where[which] / name
    bad.write_bytes(bad.read_bytes()[:-3])
    with pytest.raises(DataError, match=f"{bad} is corrupt: .*(Delete|Reinstall)"):
        locate(sample.spec, places(sample.spec, installed=own_folders / "usr"))


def test_another_data_set_under_the_right_names_is_refused(sample, sample_for, own_folders):
    other = sample_for("https://data.invalid/", seed=1)
    other.write(folders(sample, own_folders)[0])
    with pytest.raises(DataError, match=r"train-images\.gz is corrupt: expected contents with SHA-256"):
        load_set(sample.spec)


def serve_all(server, sample):
    for name, content in sample.packed.items():
        server.serve(name, content)


def test_a_download_is_named_and_found_the_next_time(server, sample_for, own_folders):
    sample = sample_for(server.url)
    serve_all(server, sample)
    folder = own_folders / "cache/datasets/sample-set"
    assert load_set(sample.spec).source == f"download from {server.url} to {folder}"
    assert load_set(sample.spec).source == f"tfperf cache: {folder}"
    assert len(server.requests) == 4


def test_only_what_is_missing_is_downloaded(server, sample_for, own_folders):
    sample = sample_for(server.url)
    serve_all(server, sample)
    folder = sample.write(own_folders / "cache/datasets/sample-set")
    (folder / "test-images.gz").unlink()
    np.testing.assert_array_equal(load_set(sample.spec).test_images[..., 0], sample.arrays[2])
    assert server.requests == ["/test-images.gz"]


def test_no_data_and_no_network_says_what_to_do(sample, own_folders):
    with pytest.raises(DataError) as caught:
        load_set(sample.spec)
    message = str(caught.value)
    assert message.startswith("sample is not on this machine and cannot be fetched: http://127.0.0.1")
    assert "the connection was refused" in message
    assert "run `tfperf data sample`" in message
    assert "copy train-images.gz, train-labels.gz, test-images.gz, test-labels.gz" in message
    assert message.endswith(f"from another machine to {own_folders}/cache/datasets/sample-set.")
    assert "\n" not in message


@pytest.fixture
def debian(sample, monkeypatch):
    """Stands for Debian's archive: what each unpacking does is chosen by the test."""

    class Debian:
        problem = None
        calls = 0

    def unpack(package, root, check):
        Debian.calls += 1
        assert package == "dataset-sample"
        if Debian.problem:
            raise DataError(Debian.problem)
        sample.write(root / "usr/share/datasets/sample-set")
        check(root)

    monkeypatch.setattr(loading, "unpack_package", unpack)
    return Debian


def test_obtain_asks_debian_before_the_internet(debian, server, sample_for, own_folders):
    sample = sample_for(server.url)
    serve_all(server, sample)
    root = own_folders / "cache/dataset-sample"
    source = f"unpacked Debian package dataset-sample: {root}/usr/share/datasets/sample-set"
    assert obtain_set(sample.spec).source == source
    assert obtain_set(sample.spec).source == source
    assert load_set(sample.spec).source == source
    assert debian.calls == 1  # it was there the second time
    assert server.requests == []


def test_obtain_downloads_where_debian_cannot_help(debian, server, sample_for, own_folders):
    debian.problem = "no Debian here"
    sample = sample_for(server.url)
    serve_all(server, sample)
    assert obtain_set(sample.spec).source.startswith("download from http://127.0.0.1")


def test_obtain_tells_both_problems(debian, sample, own_folders):
    debian.problem = "no Debian here"
    with pytest.raises(DataError, match=r"no Debian here; http.* refused\. To go on: copy train-images") as caught:
        obtain_set(sample.spec)
    assert "tfperf data" not in str(caught.value)  # that is what was run


def test_obtain_does_not_replace_a_corrupt_file(debian, sample, own_folders):
    folder = sample.write(folders(sample, own_folders)[0])
    (folder / "train-labels.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"train-labels\.gz is corrupt"):
        obtain_set(sample.spec)
    assert debian.calls == 0


def test_obtain_tells_of_an_unpacked_package_that_lacks_files(sample, own_folders, monkeypatch):
    root = own_folders / "cache/dataset-sample"
    root.mkdir(parents=True)
    monkeypatch.setattr(loading, "unpack_package", lambda package, root, check: None)
    with pytest.raises(
        DataError, match=f"{root} was there already and lacks files of sample. Delete the folder {root}"
    ):
        obtain_set(sample.spec)


def test_names():
    assert NAMES == ("mnist", "fashion_mnist", "digits")


@pytest.mark.parametrize("function", [load, obtain])
@pytest.mark.parametrize(
    ("name", "near"),
    [("fashion-mnist", "fashion_mnist"), ("MNIST", "mnist"), ("digit", "digits"), ("cifar10", None), ("", None)],
)
def test_an_unknown_name_is_echoed_with_the_known_ones(function, name, near):
    with pytest.raises(ValueError, match="expected one of mnist, fashion_mnist, digits") as caught:
        function(name)
    assert f"name={name!r}" in str(caught.value)
    assert (f"Did you mean {near!r}?" in str(caught.value)) is (near is not None)


@pytest.mark.parametrize("name", [None, 3, b"mnist", ["mnist"]])
def test_a_name_that_is_no_string_is_a_type_error(name):
    with pytest.raises(TypeError, match="as a string"):
        load(name)


@pytest.mark.parametrize("function", [load, obtain])
def test_digits(function):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    dataset = function("digits")
    assert dataset.describe().startswith(
        "digits: 1,437 train + 360 test images of 8x8x1, 10 classes, from scikit-learn"
    )
    images = np.concatenate([dataset.train_images, dataset.test_images])[..., 0]
    np.testing.assert_array_equal(images, np.floor(bunch.images * 255 / 16 + 0.5))
    assert (images.min(), images.max()) == (0, 255)
    np.testing.assert_array_equal(np.concatenate([dataset.train_labels, dataset.test_labels]), bunch.target)
    assert set(dataset.test_labels) == set(range(10))


def test_digits_without_scikit_learn_say_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"pip install 'tfperf\[data\]'"):
        load("digits")


def test_other_digits_are_refused(monkeypatch):
    from sklearn import datasets

    bunch = datasets.load_digits()
    bunch.images[7, 3, 3] = (bunch.images[7, 3, 3] + 1) % 17
    monkeypatch.setattr(datasets, "load_digits", lambda: bunch)
    with pytest.raises(DataError, match="are not the ones tfperf knows"):
        load("digits")


def test_importing_loads_nothing_heavy():
    program = (
        "import sys, tfperf.data; "
        "print([m for m in ('tensorflow', 'keras', 'sklearn', 'requests', 'rich', 'scipy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_threads_that_load_together_all_get_it(server, sample_for, own_folders):
    sample = sample_for(server.url)
    serve_all(server, sample)
    sources = []
    threads = [threading.Thread(target=lambda: sources.append(load_set(sample.spec).name)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sources == ["sample"] * 4
