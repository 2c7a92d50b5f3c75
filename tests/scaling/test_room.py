"""The room as a whole: its names, each in the module that it is said to be in."""

import importlib

import pytest

import tfperf.scaling as room


@pytest.mark.parametrize("name", room.__all__)
def test_every_public_name_is_there(name):
    assert getattr(room, name) is getattr(importlib.import_module(f"tfperf.scaling.{room._HOMES[name]}"), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = room.nonsense
