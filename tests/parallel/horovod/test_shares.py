"""The parts of tfperf.parallel.horovod that need no other rank."""

import itertools
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

import tfperf.parallel.horovod as hvd
from tfperf.parallel.horovod import batches, callbacks
from tfperf.parallel.horovod.collectives import _split, _split_by_size, all_finite
from tfperf.parallel.horovod.coordination import differing_ranks
from tfperf.parallel.rank_names import name_ranks


class Ranks:
    """Stands in for Horovod: this process is one of several ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = lambda: rank, lambda: size


def shares_of(data, size: int) -> list:
    shares = []
    for rank in range(size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batches, "hvd", Ranks(rank, size))
            shares.append(hvd.shard(data))
    return shares


@given(length=st.integers(0, 40), size=st.integers(1, 9))
def test_shares_of_arrays(length: int, size: int) -> None:
    """Equal, disjoint, in order, and less than one example a rank is left out."""
    shares = shares_of(np.arange(length), size)
    assert {len(share) for share in shares} == {length // size}
    assert sorted(np.concatenate(shares)) == list(range(length - length % size))
    assert all((np.diff(share) == size).all() for share in shares)


@settings(max_examples=15, deadline=None)
@given(length=st.integers(0, 13), size=st.integers(1, 4), known=st.booleans())
def test_shares_of_datasets(length: int, size: int, known: bool) -> None:
    dataset = tf.data.Dataset.range(length)
    shares = shares_of(dataset if known else dataset.filter(lambda _: True), size)
    if known:
        assert {int(share.cardinality()) for share in shares} == {length // size}
    values = [[int(value) for value in share] for share in shares]
    assert {len(share) for share in values} == {length // size}
    assert sorted(itertools.chain(*values)) == list(range(length - length % size))


@given(st.integers(1, 50), st.integers(1, 60))
def test_groups_are_nearly_equal(number: int, groups: int) -> None:
    positions = list(range(number))
    lists = _split(positions, groups)
    sizes = [len(part) for part in lists]
    assert list(itertools.chain(*lists)) == positions
    assert len(lists) == min(number, groups)
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 60))
def test_groups_by_size_have_the_least_but_for_the_first(sizes: list[int], least: int) -> None:
    positions = list(range(len(sizes)))
    lists = _split_by_size(positions, sizes, least)
    assert list(itertools.chain(*lists)) == positions
    for part in lists[1:]:
        total = sum(sizes[position] for position in part)
        assert total >= least
        assert total - sizes[part[0]] < least  # and no more than that takes


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=7))
def test_the_odd_ranks_are_those_that_differ_from_most(values: list[str]) -> None:
    told = dict(enumerate(values))
    odd = differing_ranks(told)
    counts = Counter(values)
    usual = {value for rank, value in told.items() if rank not in odd}
    assert len(usual) == 1
    assert counts[usual.pop()] == max(counts.values())


def test_of_two_ranks_rank_0_is_right() -> None:
    assert differing_ranks({0: "a", 1: "b"}) == [1]
    assert differing_ranks({0: "a", 1: "b", 2: "b"}) == [0]
    assert differing_ranks({0: "a", 1: "a"}) == []


def test_names_of_ranks() -> None:
    assert name_ranks([1]) == "rank 1"
    assert name_ranks([1, 3]) == "ranks 1, 3"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_all_finite(dtype: str, bad: float) -> None:
    largest = tf.constant([float(tf.as_dtype(dtype).max)] * 3, dtype)
    spoiled = tf.tensor_scatter_nd_update(largest, [[1]], tf.constant([bad], dtype))
    rows = tf.IndexedSlices(tf.reshape(spoiled, (3, 1)), tf.constant([0, 0, 1]), tf.constant([2, 1]))
    assert bool(all_finite([largest, tf.zeros((0,), dtype)]))
    assert not bool(all_finite([largest, spoiled]))
    assert not bool(all_finite([largest, rows]))


@given(size=st.integers(1, 64), epochs=st.integers(1, 5), steps=st.integers(1, 50))
def test_warm_up_ends_at_the_full_rate(size: int, epochs: int, steps: int) -> None:
    """It rises from batch to batch by equal amounts, from above a rank's own rate to that of all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callbacks, "hvd", Ranks(0, size))
        callback = hvd.callbacks.LearningRateWarmupCallback(1.0, warmup_epochs=epochs, steps_per_epoch=steps)
        rates = [callback.multiplier(batch / steps) for batch in range(epochs * steps)]
    assert rates[-1] == pytest.approx(1)
    np.testing.assert_allclose(np.diff([1 / size, *rates]), (1 - 1 / size) / (epochs * steps), atol=1e-12)


def test_digests_tell_values_and_not_names() -> None:
    one, same, other = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0], name="x"), tf.Variable([1.0, 2.0000002])
    assert hvd.weights_digest([one]) == hvd.weights_digest([same])
    assert hvd.weights_digest([one]) != hvd.weights_digest([other])
    assert hvd.weights_digest([one, other]) != hvd.weights_digest([other, one])
    assert len(hvd.weights_digest([one])) == 16


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 2), (2, 3)])
def test_digests_of_every_type_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    zeros, ones = tf.Variable(tf.zeros(shape, dtype)), tf.Variable(tf.ones(shape, dtype))
    assert len(hvd.weights_digest([zeros])) == 16
    assert (hvd.weights_digest([zeros]) == hvd.weights_digest([ones])) == (0 in shape)
