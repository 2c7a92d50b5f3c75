"""The caches of the processor, as Linux tells of them."""

from pathlib import Path

from pydantic import Field

from tfperf.measure.value import Value

__all__ = ["Cache", "data_caches"]

FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class Cache(Value):
    """A cache for data."""

    level: int = Field(ge=1, description="1 is nearest to the core")
    size: int = Field(gt=0, description="bytes")
    line: int = Field(gt=0, description="bytes that come and go together")
    shared_by: int = Field(gt=0, description="logical cores")

    @property
    def name(self) -> str:
        """The short name: "L2"."""
        return f"L{self.level}"


def data_caches(folder: Path = FOLDER) -> tuple[Cache, ...]:
    """The first core's caches, the nearest first; empty where the system does not tell, as in some containers."""
    found = []
    for place in sorted(folder.glob("index*")):
        try:
            told = {
                name: (place / name).read_text(encoding="utf-8").strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            }
            line = int((place / "coherency_line_size").read_text(encoding="utf-8"))
            if told["type"] != "Instruction":
                size = _bytes(told["size"])
                shared = _count(told["shared_cpu_list"])
                found.append(Cache(level=int(told["level"]), size=size, line=line, shared_by=shared))
        except (OSError, ValueError):
            continue
    return tuple(sorted(found, key=lambda cache: cache.level))


def _bytes(text: str) -> int:
    """The bytes that "48K" means."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)


def _count(text: str) -> int:
    """How many numbers "0-3,8-11" lists."""
    ranges = [part.split("-") for part in text.split(",")]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)
