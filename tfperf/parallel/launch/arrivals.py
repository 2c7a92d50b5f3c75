"""Ranks that do not come: others wait for them in `hvd.init()`, and they do nothing."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

import psutil

from tfperf.processes.resting import LOOK, Rest

__all__ = ["watched_arrivals"]


@contextlib.contextmanager
def watched_arrivals(
    came: Collection[int],
    names: Mapping[int, str],
    process_of: Callable[[str], int | None],
    end: Callable[[], None],
    idle_limit: float,
) -> Iterator[list[str]]:
    """Look, until all ranks have come, whether one of those that are missing does nothing.

    Args:
        came: the ranks that wait for the others or have done so; it grows.
        names: rank -> as the user is told.
        process_of: gives the process of a rank by this name; None: it is not on this machine, or has ended.
        end: called once a rank is found, before the ranks that wait give up.
        idle_limit: seconds for which it does nothing.

    Yields:
        A list in which then stands, in one line, which rank it was.
    """
    found: list[str] = []
    done = threading.Event()

    def watch() -> None:
        rests: dict[int, Rest] = {}
        while len(came) < len(names) and not done.wait(LOOK):
            for rank in names.keys() - came if came else ():
                if (process := process_of(names[rank])) is None:
                    continue
                with contextlib.suppress(psutil.NoSuchProcess):
                    if rank not in rests:
                        rests[rank] = Rest(process, with_descendants=True)
                    rests[rank].look()
                    if rests[rank].idle > idle_limit:
                        how = "is stopped" if rests[rank].stopped else "has done nothing"
                        waiting = ", ".join(names[one] for one in sorted(came))
                        words = f"{names[rank]} has not come to hvd.init(), and {how} for {idle_limit:g} s"
                        found.append(f"{words}; {waiting} waited for it")
                        end()
                        return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join(2 * LOOK)
