"""Where a plan runs: in a process of its own (`child.Child`), or in this one (`here.Here`)."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = ["Host"]


class Host(Protocol):
    """Answers requests, which are methods of `worker.Worker`, and can be made to stand still."""

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""

    def ask(self, name: str, **arguments: Any) -> Any:
        """The answer to a request.

        Raises:
            TrialError: it cannot, or is there no more.
        """

    def paused(self) -> AbstractContextManager[None]:
        """Have it stand still meanwhile."""

    def taking_turns(self) -> AbstractContextManager[None]:
        """Have it stand still meanwhile, but between `wake` and `rest`."""

    def rest(self) -> None:
        """Stand still."""

    def wake(self) -> None:
        """Go on."""

    def close(self) -> None:
        """End it, and all that it started."""
