"""Fixtures of tests/report: made-up outcomes of searches, and a browser."""

import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from tests.report import outcomes as made_up_outcomes
from tfperf.report.page import page

BROWSER = "chromium"

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
)  # fmt: skip


@pytest.fixture(scope="session")
def outcomes():
    """The module outcomes.py."""
    return made_up_outcomes


@pytest.fixture
def made_up(outcomes, measured, environment):
    """A function that makes an outcome of outcomes.py by its name."""
    return lambda case: outcomes.CASES[case](measured, environment)


@pytest.fixture(scope="session")
def pages():
    """Made-up outcome -> its page: pictures take a while to draw."""
    return {}


@pytest.fixture
def page_of(made_up, pages):
    """A function that gives the page of a made-up outcome, drawn once."""

    def page_of(case):
        if case not in pages:
            pages[case] = page(made_up(case))
        return pages[case]

    return page_of


@pytest.fixture
def browse(tmp_path):
    """A function that opens a page in a headless browser, with flags, and gives what it printed and complained of."""
    if shutil.which(BROWSER) is None:
        pytest.skip(f"no {BROWSER} on the PATH")

    def browse(html, *flags):
        (tmp_path / "shown.html").write_text(html)
        command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags]
        environment = os.environ | {"HOME": str(tmp_path)}
        with subprocess.Popen(
            [*command, (tmp_path / "shown.html").as_uri()],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, complaints = process.communicate(timeout=120)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, complaints
        return printed, [line for line in complaints.splitlines() if "CONSOLE" in line]

    return browse
