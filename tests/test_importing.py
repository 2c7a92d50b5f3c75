"""tfperf.importing: Python's garbage collector while libraries load."""

import gc

import pytest

from tfperf.importing import no_collections


@pytest.fixture(params=[True, False])
def enabled(request):
    """The collector, on or off before; as it was afterwards."""
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_nothing_is_collected_within_and_all_is_as_before_after_it(enabled: bool):
    with no_collections():
        assert not gc.isenabled()
        with no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


def test_it_is_as_before_after_an_error_too(enabled: bool):
    with pytest.raises(ImportError), no_collections():
        raise ImportError("no module")
    assert gc.isenabled() is enabled


def test_it_may_decorate_a_function(enabled: bool):
    assert no_collections()(gc.isenabled)() is False
    assert gc.isenabled() is enabled
