"""A sandbox's files on the disk, measured by its supervisor from start to end, where no file system bounds them.

Not foolproof, unlike a separate file system: a file whose only descriptor is under way in a socket is not seen, and
neither is one without a name that is only mapped.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from .system import each_folder, other_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_REST_SECONDS = 1.0
_SLICE_SECONDS = 0.005
_SHARE = 10
"""Of the supervisor's time, one part in so many goes into measuring."""
_MAX_DISTURBED = 5
"""Walks in a row that folders are moved under; further ones count as too much, or moving would be a way to hide."""


class DiskWatch:
    """Measures the files written, a slice of time at each look, so that nobody waits for a tree of any size.

    Args:
        upper: Descriptor of the folder with the sandbox's files.
        most: Bytes that it may take.
    """

    def __init__(self, upper: int, most: int) -> None:
        self.upper, self.most = upper, most
        self.is_over = self._is_suspected = False
        self._walk: Iterator[None] | None = None
        self._size = self._disturbed = 0
        self._cost = 0.0
        self.next_look = time.monotonic() + _REST_SECONDS

    def look(self) -> bool:
        """Go on measuring, if it is time; True when the files have just been found to take too much."""
        if time.monotonic() < self.next_look:
            return False
        started = time.process_time()  # of the machine's time a busy one gives little
        self._walk = self._walk or self._measure()
        is_done = True
        try:
            for _ in self._walk:
                if self._size > self.most or time.process_time() - started > _SLICE_SECONDS:
                    is_done = self._size > self.most
                    break
            else:
                self._disturbed = 0
        except OSError:  # a folder was moved under the walk
            self._disturbed += 1
        spent = time.process_time() - started
        self._cost += spent
        if not is_done:
            self.next_look = time.monotonic() + _SHARE * spent
            return False
        if self._size > self.most and not self._is_suspected:
            # What was removed during the walk may have been counted beside what was written since: walk again.
            self._is_suspected, self._walk, self.next_look = True, None, time.monotonic()
            return False
        self._is_suspected = False
        self.is_over = self._size > self.most or self._disturbed >= _MAX_DISTURBED
        self._walk, self.next_look = None, time.monotonic() + max(_REST_SECONDS, _SHARE * self._cost)
        return self.is_over

    def spare_cleaning(self) -> None:
        """Leave a command the time to remove some files."""
        if self.is_over:
            self._walk, self.next_look = None, time.monotonic() + _REST_SECONDS

    def _measure(self) -> Iterator[None]:
        self._size, self._cost = 0, 0.0
        counted: set[int] = set()  # of files with several names or none
        devices = {os.fstat(self.upper).st_dev, os.stat("/").st_dev}  # not files in memory
        for pid in other_processes(True):
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):  # it ended meanwhile
                        status = os.stat(f"/proc/{pid}/fd/{name}")
                        if not status.st_nlink and status.st_dev in devices and stat.S_ISREG(status.st_mode):
                            self._count(status, counted)
            yield
        for folder in each_folder(self.upper):
            for entry in folder.entries:
                with contextlib.suppress(OSError):
                    self._count(entry.stat(follow_symlinks=False), counted)
            yield

    def _count(self, status: os.stat_result, counted: set[int]) -> None:
        if status.st_nlink != 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in counted:
                return
            counted.add(status.st_ino)
        self._size += status.st_blocks * 512
