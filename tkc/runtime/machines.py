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

_SECONDS = 1.0  # after which a call that waits looks for machines that were lost


class _Turn(Generic[Machine]):
    """A call that waits: ``woken`` is set when it has a machine, or should look whether one can be made."""

    def __init__(self) -> None:
        self.machine: Machine | None = None
        self.woken = threading.Event()


class Machines(Generic[Machine]):
    """A pool that lends each call a machine of its own, at most ``most`` at once; further calls wait in turn.

    A machine that is free is lent without a lock: the deque's own operations are atomic. One that is lost, because an
    interrupt came between two lines, counts no more when it is collected.
    """

    def __init__(self, make: Callable[[], Machine], most: int) -> None:
        """``make`` makes one more machine, which takes weak references and is equal to no other."""
        self._make = make
        self._most = most
        self._free: deque[Machine] = deque()
        self._all: weakref.WeakSet[Machine] = weakref.WeakSet()
        self._queue: deque[_Turn[Machine]] = deque()
        self._lock = threading.Lock()

    @property
    def most(self) -> int:
        """How many calls run at once. What is lent beyond a lowered number is dropped when it comes back."""
        return self._most

    @most.setter
    def most(self, value: int) -> None:
        with self._lock:
            self._most = value
            while len(self._all) > value and self._free:
                self._all.discard(self._free.pop())
            for turn in self._queue:
                turn.woken.set()

    @property
    def lent(self) -> int:
        """How many machines are running a call."""
        return len(self._all) - len(self._free)

    def take(self) -> Machine:
        """A machine for one call; :meth:`give_back` it."""
        if not self._queue:
            try:
                return self._free.pop()
            except IndexError:
                pass
        return self._take_or_wait()

    def give_back(self, machine: Machine) -> None:
        """Lend ``machine`` to the next call."""
        if len(self._all) > self._most:
            with self._lock:
                if len(self._all) > self._most:  # still, after what others gave back
                    self._all.discard(machine)
                    return
        self._free.append(machine)
        if self._queue:  # after the machine is there: who queues from now on finds it
            with self._lock:
                self._serve()

    def after_fork(self) -> None:
        """Forget the threads of the parent, of which none was running a call."""
        self._lock = threading.Lock()
        self._queue.clear()

    def _take_or_wait(self) -> Machine:
        turn: _Turn[Machine] = _Turn()
        with self._lock:
            if not self._queue and (machine := self._free_or_new()) is not None:
                return machine
            self._queue.append(turn)
            self._serve()
        try:
            while turn.machine is None:
                turn.woken.wait(_SECONDS)
                with self._lock:
                    turn.woken.clear()
                    if turn.machine is None and self._queue[0] is turn:
                        turn.machine = self._free_or_new()
            return turn.machine
        finally:
            with self._lock:
                if turn in self._queue:
                    self._queue.remove(turn)
                for next_one in list(self._queue)[:1]:
                    next_one.woken.set()

    def _free_or_new(self) -> Machine | None:
        """A machine if one is free, or may be made. Under the lock, which making one holds for a fraction of a ms."""
        try:
            return self._free.pop()
        except IndexError:
            if len(self._all) >= self._most:
                return None
        machine = self._make()
        self._all.add(machine)
        return machine

    def _serve(self) -> None:
        """Give those who wait longest what is free. Under the lock."""
        while self._queue:
            try:
                machine = self._free.pop()
            except IndexError:
                return
            turn = self._queue.popleft()
            turn.machine = machine
            turn.woken.set()


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

    def is_busy(self) -> bool:
        """Whether another thread is inside, as found in the child."""
        raise NotImplementedError

    def after_fork(self, busy: bool) -> None:
        """Make ready for calls in the child; locks that other threads held are held for ever.

        ``busy`` says whether a thread was inside any of those that survive: they share TVM's allocator and its lock.
        """
        raise NotImplementedError


_SURVIVORS: weakref.WeakSet[SurvivesFork] = weakref.WeakSet()
_forked_while_busy = False


def forked_while_busy() -> bool:
    """Whether this is a child that was forked while another thread ran a model."""
    return _forked_while_busy


def _tell_survivors() -> None:
    global _forked_while_busy
    survivors = list(_SURVIVORS)
    _forked_while_busy = _forked_while_busy or any([survivor.is_busy() for survivor in survivors])
    for survivor in survivors:
        survivor.after_fork(_forked_while_busy)


os.register_at_fork(after_in_child=_tell_survivors)
