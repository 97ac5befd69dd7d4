"""Started sandboxes, kept ready: an episode does not wait for its container."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import deque
from typing import Any, ClassVar

from ..contract import SandboxError
from .sandbox import ImageSandbox
from .store import Image

logger = logging.getLogger(__name__)


class ImagePool:
    """Sandboxes of one event loop, each started before it is asked for.

    A sandbox that is taken is never given back: the next episode gets one with nothing of the last. The pool starts
    another of the same kind in its place, so that a kind asked for again is ready.

    Args:
        spare: Sandboxes of a kind that wait, started; 0 starts each when it is asked for.
        kinds: Kinds (image and options) that are kept ready; the one asked for longest ago goes first.
    """

    _by_loop: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ImagePool]] = weakref.WeakKeyDictionary()

    def __init__(self, *, spare: int = 0, kinds: int = 8) -> None:
        if spare < 0 or kinds < 1:
            raise ValueError(f"spare must be at least 0 and kinds at least 1, got {spare!r} and {kinds!r}")
        self.spare, self.kinds = spare, kinds
        self._ready: dict[str, deque[ImageSandbox]] = {}
        self._starting: set[asyncio.Task[None]] = set()

    @classmethod
    def of_this_loop(cls) -> ImagePool:
        """The pool of the running event loop; without spares until `spare` is set."""
        return cls._by_loop.setdefault(asyncio.get_running_loop(), cls())

    async def take(self, image: Image, **options: Any) -> ImageSandbox:
        """A started sandbox of this kind; options as of `ImageSandbox`."""
        kind = repr((image, sorted(options.items(), key=lambda item: item[0])))
        waiting = self._ready.pop(kind, deque())
        self._ready[kind] = waiting  # the kind asked for last stands last
        sandbox = None
        while waiting and sandbox is None:
            ready = waiting.popleft()
            if ready.is_running:
                sandbox = ready
            else:
                await ready.close()
        if sandbox is None:
            sandbox = ImageSandbox(image, **options)
            try:
                await sandbox.start()
            except BaseException:
                await sandbox.close()
                raise
        if self.spare:
            self._fill(kind, image, options)
        return sandbox

    def _fill(self, kind: str, image: Image, options: dict[str, Any]) -> None:
        async def start() -> None:
            sandbox = ImageSandbox(image, **options)
            try:
                await sandbox.start()
            except (SandboxError, OSError) as error:
                logger.warning("image=<%s>, error=<%s> | a spare sandbox did not start", image.name, error)
                await sandbox.close()
                return
            except BaseException:
                await sandbox.close()
                raise
            waiting = self._ready.setdefault(kind, deque())
            if len(waiting) < self.spare:
                waiting.append(sandbox)
            else:
                await sandbox.close()

        async def shrink() -> None:
            while len(self._ready) > self.kinds:
                for sandbox in self._ready.pop(next(iter(self._ready))):
                    await sandbox.close()

        for _ in range(self.spare - len(self._ready[kind])):
            self._task(start())
        if len(self._ready) > self.kinds:
            self._task(shrink())

    def _task(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def close(self) -> None:
        """End every sandbox that waits."""
        for task in list(self._starting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        while self._ready:
            _, waiting = self._ready.popitem()
            for sandbox in waiting:
                await sandbox.close()
