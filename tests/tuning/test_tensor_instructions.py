"""Tensor instructions are there for every target that a process tunes for, one after the other."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.daily(1)
def test_one_target_after_another() -> None:
    """In a process of its own, since they stay registered."""
    program = (
        "from tkc.kernels import Target\n"
        "from tkc.schedules.tuning.tensor_instructions import register\n"
        "from tvm.s_tir import TensorIntrin\n"
        "for target in ('cpu', 'cuda:sm_90a', 'cpu'):\n"
        "    register(Target.parse(target))\n"
        "assert TensorIntrin.get('wmma_fill_16x16x16_f32') is not None\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
