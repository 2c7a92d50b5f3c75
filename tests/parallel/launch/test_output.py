"""What ranks print, passed on."""

import io
import re

import pytest

from tfperf.importing import START_UP_NOISE
from tfperf.parallel.launch.output import Relay

NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795269608.548668   20968 port.cc:153] oneDNN custom operations are on. You may see slightly different \
numerical results due to floating-point round-off errors from different computation orders. To turn them off, set the \
environment variable `TF_ENABLE_ONEDNN_OPTS=0`.
I0000 00:00:1795269608.549742   20968 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be \
used.
E0000 00:00:1795269651.700171   21196 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed call to \
cuInit: UNKNOWN ERROR (303)
"""

ERRORS = """\
E0000 00:00:1795269651.700171   21196 cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no device (100)
[2026-11-21 14:00:52.8: W horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be reduced
ValueError: oneDNN custom operations are on
"""


def relayed(text, *, prefix="[1] ", hidden=START_UP_NOISE, copy=None, target=None, on_broken_pipe=None):
    target = target or io.StringIO()
    data = text.encode() if isinstance(text, str) else text
    relay = Relay(
        io.BytesIO(data), target, prefix=prefix, hidden=hidden, copy=copy, on_broken_pipe=on_broken_pipe or pytest.fail
    )
    relay.run()
    return relay, target.getvalue()


def test_each_line_gets_the_prefix():
    assert relayed("a\nb\n")[1] == "[1] a\n[1] b\n"


def test_a_last_line_is_ended():
    assert relayed("a\nb")[1] == "[1] a\n[1] b\n"


def test_progress_is_passed_on_as_it_comes():
    assert relayed("10%\r20%\r\n")[1] == "[1] 10%\r[1] 20%\r\n"


def test_bytes_that_are_no_text_are_passed_on():
    assert relayed(b"caf\xc3\xa9 \xff\n")[1] == "[1] caf\u00e9 \ufffd\n"


def test_noise_of_a_healthy_start_is_left_out_and_nothing_else():
    assert relayed(NOISE + ERRORS, prefix="")[1] == ERRORS


def test_noise_is_kept_when_nothing_is_to_be_hidden():
    assert relayed(NOISE, prefix="", hidden=None)[1] == NOISE


def test_the_copy_has_every_line_as_it_was(tmp_path):
    path = tmp_path / "copy"
    relayed(NOISE + ERRORS, copy=path.open("w"))
    assert path.read_text() == NOISE + ERRORS


@pytest.mark.parametrize(
    ("line", "blames"),
    [
        ("UnknownError: {{function_node}} Horovod has been shut down. This was caused by an exception on one\n", True),
        ("horovod.common.exceptions.HorovodInternalError: ...\n", True),
        ("E operations.cc:697] [0]: Horovod background loop uncaught exception: Connection closed by peer\n", True),
        ("ValueError: bad\n", False),
    ],
)
def test_a_rank_that_blames_another_one_is_known(line, blames):
    assert relayed("first\n" + line + "last\n")[0].saw_broken_ring is blames


def test_a_target_that_nobody_reads_is_told():
    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    told = []
    relayed("a\n", target=Closed(), on_broken_pipe=lambda: told.append(1))
    assert told


def test_hiding_is_by_search():
    assert relayed("keep\ndrop it\n", prefix="", hidden=re.compile("drop"))[1] == "keep\n"


def test_a_full_disk_ends_the_copy_and_not_the_rank(capsys):
    class Full(io.StringIO):
        def write(self, _):
            raise OSError(28, "No space left on device")

    assert relayed("a\nb\n", copy=Full())[1] == "[1] a\n[1] b\n"
    assert capsys.readouterr().err.count("No space left") == 1
