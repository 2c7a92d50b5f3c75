"""What a run of any recipe leaves behind."""

import pytest

from tfperf.measure.results import read_result


@pytest.fixture(scope="session")
def check_result():
    """A function that checks what a recipe has written into a folder against what it printed, and gives the result."""

    def check_result(name, folder, printed):
        result = read_result(folder / "results" / f"{name}.json")
        assert result.name == name
        assert result.meaning, "a recipe says in words what its figures mean"
        assert result.comparisons or result.measurements
        assert result.agreements, "no speed without a check of the answers"
        assert all(agreement.passed for agreement in result.agreements)
        assert (folder / "results" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        for sentence in result.meaning:
            assert sentence[:40] in printed
        return result

    return check_result
