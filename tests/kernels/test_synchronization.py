"""Generated CUDA for Hopper: who fences, who waits for whom; and the check itself finds whatever is left out."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.kernels.cuda_machine import Fault
from tests.kernels.cuda_source import cuda_code
from tests.kernels.cuda_threads import Launch
from tests.kernels.synchronization import check
from tests.kernels.synchronized import CHECKED, of_cases

_SYNCHRONIZES = re.compile(
    r"\.(wait|arrive|init)\(|expect|fence|__sync|cluster_sync|warpgroup_(arrive|commit|wait)|wait_wgmma"
    r"|tma_store_(arrive|wait)|cp_async_(commit|wait)|cudaGridDependency|noinc"
)

# What may be left out of a kernel, since something else orders the same, and how often. Most of it TileLang adds beside
# what the definitions ask for; products of one group need one commit, and one wait for the stores of a tile is enough.
SPARE: dict[str, dict[str, int]] = {
    "matmul, persistent": {
        "tl::fence_proxy_async": 2,
        "tl::__sync_thread_partial": 2,
        "tl::tma_store_wait<1, true>": 2,
    },
    "matmul, wgmma": {},
    "matmul, cluster": {"tl::fence_proxy_async": 1, "tl::__sync_thread_partial": 2, "__syncwarp": 1},
    "matmul, mma": {},
    "batched, mma": {},
    "gated, wgmma": {},
    "gated, mma": {"mbarrier.wait": 2, "tl::fence_proxy_async": 1},
    "grouped, persistent": {
        "tl::fence_proxy_async": 2,
        "tl::tma_store_wait<0, true>": 2,
        "tl::tma_store_wait<1, true>": 2,
    },
    "grouped, gathered": {
        "tl::fence_proxy_async": 4,
        "tl::tma_store_wait<0, true>": 2,
        "tl::tma_store_wait<1, true>": 2,
    },
    "scaled, persistent": {"tl::fence_proxy_async": 2, "tl::warpgroup_arrive": 2},
    "scaled, mma": {},
    "prefill, persistent": {
        "tl::__sync_thread_partial": 2,
        "tl::fence_proxy_async": 3,
        "tl::warpgroup_arrive": 1,
        "tl::warpgroup_fence_operand": 2,
        "q_empty.arrive": 1,
    },
    "prefill, pipelined": {"__syncthreads": 2, "tl::warpgroup_fence_operand": 1},
    "decode": {"tl::cp_async_commit": 2, "__syncthreads": 2},
    "latent, pipelined": {
        "__syncthreads": 2,
        "mbarrier.wait": 1,
        "tl::fence_proxy_async": 1,
        "tl::__sync_thread_partial": 2,
    },
    "permute": {"__syncthreads": 3},
    "swiglu, a scale per block": {},
    "rms": {},
    "quantized rms, a scale per token": {},
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", CHECKED)
def test_all_is_ordered(name: str) -> None:
    """No access of shared memory races with another, no proxy goes unfenced, and no wait is for ever."""
    checked = CHECKED[name]
    code = cuda_code(checked.request)
    runs = check(code.source, checked.launch(code.boxes))
    assert runs and not any(run.unknown for run in runs)


def test_a_family_without_a_row_is_checked_by_its_own_case() -> None:
    """So that a new one is checked before anyone writes a row for it."""
    (checked,) = of_cases({"rotary"}).values()
    code = cuda_code(checked.request)
    assert check(code.source, checked.launch(code.boxes))


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", SPARE)
def test_what_is_left_out_is_missed(name: str) -> None:
    """Each statement that synchronizes, one after the other; only those that others make up for are not missed."""
    code = cuda_code(CHECKED[name].request)
    launch = CHECKED[name].launch(code.boxes)
    lines = code.source.splitlines()
    places = [i for i, line in enumerate(lines) if line.endswith(";") and _SYNCHRONIZES.search(line)]
    places = [i for i in places if "AllReduce" not in lines[i]]
    assert places
    unmissed = [lines[i].strip() for i in places if _passes([*lines[:i], *lines[i + 1 :]], launch)]
    assert Counter(re.sub(r"\[.*\]\.", ".", text).split("(")[0] for text in unmissed) == SPARE[name]


def _passes(lines: list[str], launch: Launch) -> bool:
    try:
        check("\n".join(lines), launch)
    except Fault:
        return False
    return True


_PROLOGUE = """
extern "C" __global__ void __launch_bounds__(256, 1) kernel(__grid_constant__ const CUtensorMap x_desc, int m) {
  extern __shared__ __align__(1024) uchar buf_dyn_shmem[];
  void* tile = ((void*)((char*)buf_dyn_shmem + 0));
  __shared__ __align__(16) uint64_t loaded_mem[1];
  auto loaded = reinterpret_cast<Barrier*>(loaded_mem);
  float sum[1];
  if (tl::tl_shuffle_elect<0>()) {
    loaded[0].init(128);
  }
  tl::fence_barrier_init();
  __syncthreads();
  cudaGridDependencySynchronize();
"""
_LOADED = """
  if (((int)threadIdx.x) < 128) {
    if (tl::tl_shuffle_elect<128>()) {
      loaded[0].expect_transaction(4096);
      tl::tma_load(x_desc, loaded[0], (&(((float*)tile)[0])), 0, 0);
    }
    loaded[0].arrive();
  } else {
    loaded[0].wait(0);
    sum[0] = ((float*)tile)[((int)threadIdx.x)];
  }
}
"""
_WRITTEN = """
  ((float*)tile)[((int)threadIdx.x)] = 0x0p+0f;
  __syncthreads();
  sum[0] = ((float*)tile)[(255 - ((int)threadIdx.x))];
}
"""


@pytest.mark.parametrize(
    ("body", "old", "new", "fault"),
    [
        (_LOADED, "", "", None),
        (_LOADED, "wait(0)", "wait(1)", "writes what is still being read"),
        (_LOADED, "(4096)", "(2048)", "expects 2048 bytes, and 4096 are loaded"),
        (_LOADED, "(4096)", "(8192)", "wait for ever"),
        (_LOADED, "expect_transaction(4096)", "arrive_and_expect_tx(4096)", "more threads arrive"),
        (_LOADED, "if (((int)threadIdx.x) < 128)", "if (((int)threadIdx.x) < 96)", "wait for ever"),
        (_LOADED, "loaded[0].arrive();", "loaded[m].arrive();", "loaded has 1 barriers, and number 7 is used"),
        (_LOADED, "tile)[0]", "tile)[60000]", "are not in shared memory"),
        (_WRITTEN, "", "", None),
        (_WRITTEN, "__syncthreads();", "__syncwarp();", "writes what is still being read"),
        (_WRITTEN, "__syncthreads();", "tl::__sync_thread_partial(1, 128);", "writes what is still being read"),
        (_WRITTEN, "__syncthreads();", "tl::__sync_thread_partial(1, 512);", "wait for ever"),
    ],
)
def test_faults_of_a_few_lines(body: str, old: str, new: str, fault: str | None) -> None:
    """Each is named for what it is."""
    source = (_PROLOGUE + (body.replace(old, new) if old else body)).strip()
    launch = Launch({"m": 7}, {"x_desc": 4096})
    if fault is None:
        check(source, launch)
    else:
        with pytest.raises(Fault, match=re.escape(fault)):
            check(source, launch)
