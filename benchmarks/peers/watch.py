"""The memory of a process and of all it started, by PSS: a page that several share counts once in all."""

from __future__ import annotations

import threading
from pathlib import Path


def descendants(root: int) -> list[int]:
    """A process, its children, theirs, and so on."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, ahead = [], [root]
    while ahead:
        found.append(ahead.pop())
        ahead += parents.get(found[-1], [])
    return found


def pss(process: int) -> int:
    """The proportional set size of one process, in bytes; 0 once it is gone."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Watch(threading.Thread):
    """Follows the tree of a process and remembers its peak."""

    def __init__(self, root: int, every: float = 0.2) -> None:
        super().__init__(daemon=True)
        self.root, self.every, self.peak = root, every, 0
        self._over = threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self._over.wait(self.every):
            self.peak = max(self.peak, sum(pss(process) for process in descendants(self.root)))

    def stop(self) -> int:
        """The peak so far, in bytes."""
        self._over.set()
        self.join()
        return self.peak
