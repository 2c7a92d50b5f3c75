"""The published tables of benchmarks/published.py: the model's errors, which are promised in docs/scaling.md."""

import importlib.util
import statistics
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "published.py"


@pytest.fixture(scope="module")
def published():
    spec = importlib.util.spec_from_file_location("published", BENCHMARK)
    sys.modules["published"] = module = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["published"]


@pytest.fixture(scope="module")
def figures(published):
    return published.figures_of(published.first_set())


@pytest.mark.parametrize(
    ("net", "megabytes", "tensors"),
    [
        ("inception_v3", 95, 190), ("resnet50", 102, 161), ("resnet101", 179, 314),
        ("vgg16", 553, 32), ("bert_base", 440, 206),
    ],
)  # fmt: skip
def test_nets_are_as_large_as_they_are_said_to_be(published, net, megabytes, tensors):
    sizes = [size for layer in published.layers_of(net) for size in layer.gradients]
    assert sum(sizes) / 1e6 == pytest.approx(megabytes, rel=0.01)
    assert len(sizes) == tensors


def test_the_largest_of_vgg_is_411_mb(published):
    assert max(size for layer in published.layers_of("vgg16") for size in layer.gradients) == pytest.approx(
        411e6, rel=1e-3
    )


def test_errors_of_the_first_set(published, figures):
    errors = [abs(one.error) for one in figures]
    assert len(errors) == 39
    assert statistics.median(errors) <= published.MOST_MEDIAN / 2
    assert max(errors) <= published.MOST_WORST


def test_every_figure_is_within_its_bounds(figures):
    assert [one.row for one in figures if not one.within] == []


def test_horovods_efficiencies_on_512_gpus(published, figures):
    large = [one for one in figures if one.row.source == published.HOROVOD_DOCS]
    assert [one.workers for one in large] == [512] * 3
    assert max(abs(one.points) for one in large) <= published.MOST_POINTS


def test_errors_of_the_second_set(published):
    errors = [abs(one.error) for one in published.figures_of(published.second_set())]
    assert statistics.median(errors) <= published.MOST_MEDIAN / 2
    assert max(errors) <= 0.25


def test_no_constant_is_fitted():
    """The likely value of each constant is the middle of its range."""
    from tfperf.scaling import constants

    ranges = [value for value in vars(constants).values() if isinstance(value, constants.Range)]
    finite = [one for one in ranges if max(one) < float("inf")]
    assert len(finite) > 10
    assert all(one.likely == pytest.approx((one.slow + one.fast) / 2) for one in finite)


def test_a_missing_term_has_a_name(published, figures):
    far = [one for one in figures if abs(one.error) > published.NAMED]
    assert far
    assert all(one.row.too_fast if one.error > 0 else one.row.too_slow for one in far)
