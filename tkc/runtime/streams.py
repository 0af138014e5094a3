"""The order of calls on CUDA streams, where one call's memory is another's."""

from __future__ import annotations

import threading

import torch


class StreamOrder:
    """Has the stream of a call wait for the stream of the call before it, if that was another one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._handle: int | None = None

    def __call__(self) -> None:
        """To be called before each call's work begins, on the thread that launches it."""
        handle = torch._C._cuda_getCurrentRawStream(self._device.index)
        if handle == self._handle or torch.cuda.is_current_stream_capturing():
            return  # the caller's own graph can wait for nothing outside it
        stream = torch.cuda.current_stream(self._device)
        if self._stream is not None:
            stream.wait_stream(self._stream)
        self._stream, self._handle = stream, handle


class ThreadStreamOrder(StreamOrder, threading.local):
    """The same for the calls of each thread by themselves: graphs and scratch memory belong to a thread."""
