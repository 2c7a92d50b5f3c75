"""SparkCluster: Spark with several executors on this machine, and an end to everything it started."""

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tfperf.errors import TfperfError
from tfperf.parallel.private_network import LOOPBACK, is_private
from tfperf.parallel.spark.executor_daemon import listen_on_loopback_only
from tfperf.processes.signals import handling
from tfperf.processes.sweeping import end_all_with

__all__ = ["SparkCluster"]

EXECUTOR_MEMORY = 1024
"""MiB of each executor's Java; the Python workers' memory is beside it."""

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For processes that live a minute: code that is compiled soon rather than well, and no threads that collect."""

START_DEADLINE = 180.0
"""Seconds for Spark to start; from a cold disk it has taken 50."""

JOB_DEADLINE = 240.0
"""Seconds that a job may take unless its program says otherwise; a training of Spark's starts within 60."""

GRACE = 30.0
"""Seconds that Spark has to end by itself before its processes are killed."""

LOG_SETTINGS = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n
"""


class SparkCluster:
    """A Spark application with one task at a time on each of `nodes` executors, processes of this machine.

    ::

        with SparkCluster(2) as cluster, cluster.job("counting", deadline=60):
            cluster.context.range(10).count()

    On a cluster of several hosts `spark-submit --master ... --num-executors 2 --executor-cores 1` takes its place.
    Here Spark, its executors, and Horovod's and TensorFlowOnSpark's services listen on loopback only. All of its
    processes end with the block, also after an error or Ctrl-C. Its files are in a temporary folder.
    """

    def __init__(self, nodes: int) -> None:
        """Take the number of executors; `with` starts them."""
        self.nodes = nodes
        self.context: Any = None
        """The `pyspark.SparkContext`."""
        self.seconds_to_start = 0.0
        """How long Spark took to start."""

    @property
    def is_private(self) -> bool:
        """Whether no server of its processes can be reached from elsewhere, TensorFlow's own among them."""
        return is_private()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfperf-spark-")))
            stack.enter_context(_environment(self._prepare_home()))
            stack.enter_context(handling(signal.SIGTERM, signal.default_int_handler))
            stack.callback(self._end)
            with self.job("starting Spark", START_DEADLINE) as start:
                self._start()
            self.seconds_to_start = time.time() - start
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def job(self, what: str, deadline: float = JOB_DEADLINE) -> Iterator[float]:
        """Run Spark jobs that are cancelled when they take longer than the deadline; gives when they began.

        Args:
            what: the jobs, for error messages.
            deadline: in seconds.

        Raises:
            TfperfError: what the block raised, in one line with the worker's own error; or it was not done in time.
        """
        done, overdue = threading.Event(), threading.Event()

        def watch() -> None:
            if done.wait(deadline):
                return
            overdue.set()
            end = time.monotonic() + GRACE
            while time.monotonic() < end:
                with contextlib.suppress(Exception):  # Spark itself may be what hangs
                    self.context.cancelAllJobs()
                if done.wait(1.0):  # the block may be about to start another job
                    return
            self._kill()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        print_error = threading.excepthook
        threading.excepthook = lambda _: None  # of Horovod's threads: what ends them is raised below
        try:
            yield time.time()
        except (Exception, SystemExit) as error:  # TensorFlowOnSpark ends the program where a job failed
            words = self._last_words()
            if overdue.is_set():
                because = f"; a worker said: {words}" if words else ""
                raise TfperfError(f"{what} was not done after {deadline:g} s and was cancelled{because}") from error
            raise TfperfError(f"{what} failed: {words or _one_line(error)}") from error
        finally:
            done.set()
            watcher.join()
            threading.excepthook = print_error

    def _prepare_home(self) -> dict[str, str]:
        """Make the installed PySpark's twin in a folder that may be written to; the environment for its processes."""
        import pyspark

        for part in Path(pyspark.__file__).parent.iterdir():
            (self._home / part.name).symlink_to(part)
        for folder in ("conf", "tmp"):
            (self._home / folder).mkdir()
        (self._home / "conf" / "log4j2.properties").write_text(LOG_SETTINGS, encoding="utf-8")
        return {
            "SPARK_HOME": str(self._home),
            "SPARK_CONF_DIR": str(self._home / "conf"),
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": "pyspark-shell",  # the user's may name another cluster
            "TMPDIR": str(self._home / "tmp"),
        }

    def _start(self) -> None:
        from horovod.runner import gloo_run
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        _import_tensorflow_on_spark()
        listen_on_loopback_only()
        threads = max(1, (os.cpu_count() or 1) // self.nodes)
        settings = {
            "spark.master": f"local-cluster[{self.nodes},1,{EXECUTOR_MEMORY}]",
            "spark.app.name": "tfperf",
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": str(self._home / "tmp"),
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.memory": f"{EXECUTOR_MEMORY}m",
            "spark.executorEnv.TF_NUM_INTRAOP_THREADS": str(threads),
            "spark.python.daemon.module": "tfperf.parallel.spark.executor_daemon",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # the start lasts until all executors are there
            "spark.task.maxFailures": "1",  # a rank that failed cannot be run again alone
        }
        configuration = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        keyboard_interrupt = signal.getsignal(signal.SIGINT)
        # In a session of its own, so that Ctrl-C does not reach it: it is ended here, in order.
        with (self._home / "driver.log").open("w", encoding="utf-8") as log:
            gateway = launch_gateway(configuration, {"stderr": log, "start_new_session": True})
        self.context = SparkContext(conf=configuration, gateway=gateway)
        if signal.getsignal(signal.SIGINT) is not keyboard_interrupt:
            signal.signal(signal.SIGINT, keyboard_interrupt)  # PySpark's calls Spark amid a call of Spark
        gloo_run.register_shutdown_event = threading.Event  # Horovod's keeps Ctrl-C from everybody else

    def _end(self) -> None:
        """Stop Spark, and make sure that all its processes are gone."""
        from pyspark import SparkContext

        if self.context is not None:
            stopping = threading.Thread(target=self._stop_context, daemon=True)
            stopping.start()
            stopping.join(GRACE)
        gateway = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        if gateway is not None:
            with contextlib.suppress(Exception):
                gateway.shutdown()
            gateway.proc.stdin.close()  # at its end Spark's driver ends
            psutil.wait_procs(self._processes(), GRACE)
        self._kill()
        if gateway is not None:
            gateway.proc.wait()

    def _stop_context(self) -> None:
        with contextlib.suppress(Exception):  # Java may be gone already
            self.context.stop()

    def _processes(self) -> list[psutil.Process]:
        """All that Spark has started, wherever they have moved to: they inherit the home, which no other has."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SPARK_HOME") == str(self._home) and process.pid != os.getpid():
                    found.append(process)
        return found

    def _kill(self) -> None:
        end_all_with("SPARK_HOME", str(self._home))

    def _last_words(self) -> str:
        """The error of the worker that failed first, from the executors' logs; empty: none said any."""
        logs = [*sorted(self._home.glob("work/*/*/std*")), *self._home.glob("driver.log")]
        errors = [
            match[1] for log in logs for match in _ERROR.finditer(log.read_text(errors="replace", encoding="utf-8"))
        ]
        causes = [error for error in errors if not error.startswith(_FOLLOW_UPS)]
        return _one_line((causes or errors or [""])[0])


_ERROR = re.compile(r"^(?:\[\d+\]<stderr>:)?([\w.]*(?:Error|Exception)\b: .+)$", re.MULTILINE)
"""An error as Python ends its traceback with, as Horovod passes it on or not."""

_FOLLOW_UPS = ("horovod.common.exceptions.HorovodInternalError", "org.", "java.")
"""Errors that other workers have after the first one failed."""


def _import_tensorflow_on_spark() -> None:
    """Import it for the first time without what it says about itself, and without the logs that it turns on."""
    root = logging.getLogger()
    level = root.level
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # of pkg_resources
        import tensorflowonspark.TFCluster  # noqa: F401
    root.setLevel(level)
    logging.getLogger("tensorflowonspark").setLevel(logging.CRITICAL)  # Java's stacks; `job` says what failed


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:400]


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change the environment for the length of a block."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
