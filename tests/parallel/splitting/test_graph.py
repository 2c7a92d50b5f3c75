"""Where a net can be cut, and where it is cut."""

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.errors import TfperfError
from tfperf.parallel.splitting.graph import NetGraph, _balanced


def names(tensors):
    return [tensor._keras_history.operation.name for tensor in tensors]


@given(work=st.lists(st.integers(1, 20), min_size=1, max_size=8), stages=st.integers(1, 4), data=st.data())
def test_no_other_cuts_give_a_smaller_largest_stage(work, stages, data):
    from itertools import combinations, pairwise

    places = sorted(data.draw(st.sets(st.integers(1, max(1, len(work) - 1))))) if len(work) > 1 else []
    if stages > len(places) + 1:
        return

    def largest(cuts):
        return max(sum(work[start:end]) for start, end in pairwise([0, *cuts, len(work)]))

    cuts = _balanced(work, places, stages)
    assert cuts == sorted(set(cuts))
    assert set(cuts) <= set(places)
    assert largest(cuts) == min(map(largest, combinations(places, stages - 1)))


def test_what_skips_a_cut_crosses_it():
    first = keras.Input([4], name="first")
    a = keras.layers.Dense(4, name="a")(first)
    b = keras.layers.Dense(4, name="b")(a)
    c = keras.layers.Add(name="c")([a, b])
    graph = NetGraph(keras.Model(first, [keras.layers.Concatenate(name="d")([c, first]), b]))
    assert [node.operation.name for node in graph.nodes] == ["a", "b", "c", "d"]
    assert [sorted(names(graph.crossing(position))) for position in range(5)] == [
        ["first"],
        ["a", "first"],
        ["a", "b", "first"],
        ["b", "c", "first"],
        ["b", "d"],
    ]


def test_the_profiler_counts_what_a_product_takes():
    layers = [keras.Input([8, 8, 3]), keras.layers.Conv2D(4, 3, use_bias=False), keras.layers.Flatten()]
    graph = NetGraph(keras.Sequential([*layers, keras.layers.Dense(5, use_bias=False)]))
    assert graph.flops() == [2 * 6 * 6 * 4 * 27, 0, 2 * 144 * 5]


def test_a_layer_that_is_used_twice_stays_in_one_stage():
    first, shared = keras.Input([4]), keras.layers.Dense(4)
    graph = NetGraph(keras.Model(first, keras.layers.Dense(2)(shared(keras.layers.Dense(4)(shared(first))))))
    assert [graph.may_cut(position) for position in (1, 2, 3)] == [False, False, True]


def test_a_mask_is_not_cut_off():
    layers = [keras.layers.Embedding(5, 4, mask_zero=True), keras.layers.LSTM(3), keras.layers.Dense(2)]
    graph = NetGraph(keras.Sequential([keras.Input([3], dtype="int32"), *layers]))
    assert [graph.may_cut(position) for position in (1, 2, 3)] == [False, False, True]  # 2: after the mask


class Subclassed(keras.Model):
    def call(self, x):
        return x


@pytest.mark.parametrize("net", [Subclassed(), keras.Sequential([keras.layers.Dense(2)])])
def test_a_net_whose_layers_are_not_known_is_refused(net):
    with pytest.raises(TfperfError, match=r"^expected a Sequential or functional.*Received: \w+ '[^\n]*$"):
        NetGraph(net)


@pytest.mark.parametrize("stages", [0, 3])
def test_more_stages_than_layers_are_refused(stages):
    graph = NetGraph(keras.Sequential([keras.Input([4]), keras.layers.Dense(4), keras.layers.Dense(4)]))
    with pytest.raises(TfperfError, match=rf"^expected 1 to 2 stages[^\n]*Received: {stages}$"):
        graph.balanced_cuts(stages)
