"""Network interfaces that hosts share: `python -m tfperf.parallel.launch.common_interfaces SECONDS HOST ...`.

Horovod finds them with helpers on all hosts. In a process of its own they end with it, whenever that is.
"""

import json
import sys

from tfperf.parallel.launch.hosts import is_this_machine
from tfperf.parallel.launch.loopback import listen_on

__all__ = ["FOUND", "main"]

FOUND = "interfaces: "
"""What the line of the answer begins with; Horovod and its helpers write others."""


def main() -> None:
    """Print the names of the interfaces as JSON, in a line that begins with `FOUND`."""
    from horovod.runner.common.util import secret
    from horovod.runner.common.util.settings import Settings
    from horovod.runner.common.util.timeout import Timeout
    from horovod.runner.driver.driver_service import get_common_interfaces

    seconds, names = int(sys.argv[1]), sys.argv[2:]
    listen_on("")  # which interfaces there are is the question
    timeout = Timeout(seconds, message="Timed out waiting for {activity}.")
    settings = Settings(key=secret.make_secret_key(), start_timeout=timeout, num_proc=len(names))
    elsewhere = [name for name in names if not is_this_machine(name)]
    found = sorted(get_common_interfaces(settings, names, elsewhere) or ())
    print(f"\n{FOUND}{json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
