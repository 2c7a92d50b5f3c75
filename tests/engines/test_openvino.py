"""What OpenVINO does to the process that it runs in."""

import subprocess
import sys

from tfperf.engines.conversions import Conversions
from tfperf.engines.plan import Plan

INTERRUPTED = """
import gc, os, signal, sys
from pathlib import Path
import numpy as np
from tfperf.engines.building import load
from tfperf.engines.plan import Plan
from tfperf.exports.signature import Signature

folder, signature = Path(sys.argv[1]), Signature.model_validate_json(sys.argv[2])
runners = [load(folder, signature, Plan(engine="openvino", threads=1)) for _ in range(2)]
shapes = [[2 if size is None else size for size in form.shape] for form in signature.inputs]
while runners:  # the first goes first
    runners[0](*(np.ones(shape, "float32") for shape in shapes))
    del runners[0]
    gc.collect()
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_comes_as_ever_when_nets_are_gone(servable_of, tmp_path):
    servable, plan = servable_of("cnn"), Plan(engine="openvino", threads=1)
    folder = Conversions(servable, tmp_path).folder(plan)
    program = [sys.executable, "-c", INTERRUPTED, str(folder), servable.signature.model_dump_json()]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
