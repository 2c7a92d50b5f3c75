"""What a recipe's header asks for and this environment lacks."""

import pytest

from tfperf.cli import needs
from tfperf.cli.needs import lacking
from tfperf.cookbook import list_recipes, read_header
from tfperf.doctor.finding import Finding, State

EXTRAS = [
    "numpy",
    "pytest; extra == 'here'",
    "no-such-package>=3; extra == 'toys'",
    "tfperf[here,toys]; extra == 'all'",
]
HOROVOD = Finding("Horovod", State.NOTE, "not installed", "tfperf horovod install")


@pytest.fixture(autouse=True)
def environment_without(monkeypatch):
    """An environment with other extras, without Horovod, and with all that Spark needs."""
    monkeypatch.setattr(needs.metadata, "requires", lambda name: {"tfperf": EXTRAS}[name])
    monkeypatch.setattr(needs.horovod, "look", lambda: [HOROVOD])
    monkeypatch.setattr(needs.spark, "look", lambda: [Finding("Java", State.OK, "version 17")])
    monkeypatch.setattr(needs.data, "look", lambda names: [Finding(f"data set {names[0]}", State.OK, "here")])


@pytest.mark.parametrize(
    "text",
    [
        "TensorFlow; no GPU, no data.",
        "TensorFlow; pip install 'tfperf[here]'",
        "Java 17 or newer; pip install 'tfperf[spark]'; real images (tfperf data fashion_mnist)",
        "TensorFlow; toys where they are installed (pip install 'tfperf[toys]'); no GPU.",
        "",
    ],
)
def test_nothing_lacks(text):
    assert lacking(text) == ""


@pytest.mark.parametrize("extra", ["toys", "all"])
def test_a_package_of_an_extra_lacks(extra):
    words = lacking(f"TensorFlow; pip install 'tfperf[{extra}]'; no GPU")
    assert words.startswith("package no-such-package: not installed")
    assert "pip install" in words


def test_horovod_lacks():
    assert lacking("TensorFlow; Horovod (tfperf horovod install)") == "Horovod: not installed; tfperf horovod install"


def test_data_lacks(monkeypatch):
    absent = Finding("data set fashion_mnist", State.NOTE, "not on this machine yet", "tfperf data fashion_mnist")
    monkeypatch.setattr(needs.data, "look", lambda names: [absent] if names == ["fashion_mnist"] else [])
    assert lacking(read_header(list_recipes()["quantize_int8"]).needs) == (
        "data set fashion_mnist: not on this machine yet; tfperf data fashion_mnist"
    )


def test_java_lacks(monkeypatch):
    java = Finding("Java", State.NOTE, "none; Spark needs version 17 or later")
    monkeypatch.setattr(needs.spark, "look", lambda: [java])
    assert lacking(read_header(list_recipes()["mnist_spark"]).needs) == "Java: none; Spark needs version 17 or later"


def test_the_recipes_name_what_they_need_so_that_it_is_found():
    without_horovod = {name for name, path in list_recipes().items() if lacking(read_header(path).needs)}
    assert {"mnist_hvd", "mnist_hvd_elastic", "mnist_spark"} <= without_horovod
    assert "deploy_engines" not in without_horovod
