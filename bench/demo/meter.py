"""What a loader's pass costs its own process: wall time, CPU-seconds, peak memory. The two loaders print the same line."""

import json
import time
from pathlib import Path


class Meter:
    """Starts when it is made. CPU is of all the process's threads; imports, made before, are in the memory, not in the CPU."""

    def __init__(self) -> None:
        self.pss_mib = 0.0
        self.pictures = 0
        self.cpu_at_start = time.process_time()
        self.started_at = time.perf_counter()

    def batch(self, pictures: int) -> None:
        """Called while the batch is held, as a trainer would hold it."""
        self.pictures += pictures
        self.pss_mib = max(self.pss_mib, pss_mib("self"))

    def stop(self) -> dict:
        seconds, cpu_seconds = time.perf_counter() - self.started_at, time.process_time() - self.cpu_at_start
        return {"pictures": self.pictures, "seconds": seconds, "cpu_seconds": cpu_seconds, "pss_mib": self.pss_mib}


def pss_mib(pid: int | str) -> float:
    """Memory of a process, pages that it shares with others counted in parts (proportional set size)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def report(result: dict) -> None:
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in result.items()}), flush=True)
