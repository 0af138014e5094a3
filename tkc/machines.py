"""The virtual machines of one executable: as many as calls run at once, made when they are first needed."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from tkc.errors import UsageError

Machine = TypeVar("Machine")


class Machines(Generic[Machine]):
    """A pool that lends each call a machine of its own, at most ``most`` at once; further calls wait for one.

    A machine that is free is lent without a lock: the deque's own operations are atomic.
    """

    def __init__(self, make: Callable[[], Machine], most: int) -> None:
        """``make`` makes one more machine; it is called by whichever thread needs it, several at once."""
        self._make = make
        self._most = most
        self._free: deque[Machine] = deque()
        self._made = 0
        self._waiting = 0
        self._changed = threading.Condition()

    @property
    def most(self) -> int:
        """How many calls run at once. What is lent beyond a lowered number is dropped when it comes back."""
        return self._most

    @most.setter
    def most(self, value: int) -> None:
        with self._changed:
            self._most = value
            while self._made > self._most and self._free:
                self._free.pop()
                self._made -= 1
            self._changed.notify_all()

    @property
    def lent(self) -> int:
        """How many machines are running a call."""
        return self._made - len(self._free)

    def take(self) -> Machine:
        """A machine for one call; :meth:`give_back` it."""
        try:
            return self._free.pop()
        except IndexError:
            return self._take_or_make()

    def give_back(self, machine: Machine) -> None:
        """Lend ``machine`` to the next call."""
        if self._made > self._most:
            with self._changed:
                self._made -= 1
            return
        self._free.append(machine)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def after_fork(self) -> None:
        """Forget the threads of the parent, of which none was running a call."""
        self._changed = threading.Condition()
        self._waiting = 0

    def _take_or_make(self) -> Machine:
        with self._changed:
            self._waiting += 1  # before looking again: whoever gives one back from now on wakes this thread
            try:
                while True:
                    try:
                        return self._free.pop()
                    except IndexError:
                        if self._made < self._most:
                            break
                    self._changed.wait()
            finally:
                self._waiting -= 1
            self._made += 1
        try:
            return self._make()
        except BaseException:
            with self._changed:
                self._made -= 1
                self._changed.notify()
            raise


def checked_concurrency(value: int | None) -> int:
    """``max_concurrency`` as given, or the default; :class:`UsageError` if it is no positive number.

    The default is one call for each core, and at least four: calls of small models wait for Python part of the time.
    """
    if value is None:
        return max(4, len(os.sched_getaffinity(0)))
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"max_concurrency={value!r} is no number of calls that may run at once; give 1 or more")
    return value


class SurvivesFork:
    """Something that must learn that it is in a forked child, where no other thread of its parent is left."""

    def __init__(self) -> None:
        _SURVIVORS.add(self)

    def after_fork(self) -> None:
        """Make ready for calls in the child; locks that other threads held are held for ever."""
        raise NotImplementedError


_SURVIVORS: weakref.WeakSet[SurvivesFork] = weakref.WeakSet()


def _tell_survivors() -> None:
    for survivor in list(_SURVIVORS):
        survivor.after_fork()


os.register_at_fork(after_in_child=_tell_survivors)
