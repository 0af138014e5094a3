"""Planted faults of what GPU threads wait for."""

from __future__ import annotations

from .mutant import Mutant

_ORDER = "kernels/test_synchronization.py::test_all_is_ordered"


def _order(name: str, file: str, old: str, new: str, case: str) -> Mutant:
    """A fault of synchronization, which the generated code of one ``case`` shows."""
    return Mutant(name, file, old, new, (f"{_ORDER}[{case}]",))


SYNCHRONIZATION = (
    _order(
        "persistent matmul: slices are loaded where others are read",
        "kernels/matmul/persistent.py",
        "            k.ring.wait_empty(at, parity)\n            if s.windows is None:",
        "            if s.windows is None:",
        "matmul, persistent",
    ),
    _order(
        "persistent matmul: slices are multiplied before they are loaded",
        "kernels/matmul/persistent.py",
        "            k.ring.wait_full(at, parity)\n            _multiply(",
        "            _multiply(",
        "matmul, persistent",
    ),
    _order(
        "persistent matmul: the residual's slice is never given back",
        "kernels/matmul/persistent.py",
        "    k.ring.arrive_empty(at)\n\n\n@T.macro\ndef _activate(",
        "\n\n@T.macro\ndef _activate(",
        "matmul, persistent",
    ),
    _order(
        "ring: the parity of a slot counts slices, not rounds",
        "kernels/hopper/ring.py",
        "return self.stage(slice_), slice_ // self.stages % 2",
        "return self.stage(slice_), slice_ % 2",
        "matmul, persistent",
    ),
    _order(
        "ring: one warpgroup gives back what two read",
        "kernels/hopper/ring.py",
        "stages, WARPGROUP * consumers)",
        "stages, WARPGROUP)",
        "matmul, persistent",
    ),
    _order(
        "persistent matmul: a tile is written where the last one's store still reads",
        "kernels/matmul/persistent.py",
        "        k.staging.wait()\n        T.copy(own.bias",
        "        T.copy(own.bias",
        "matmul, persistent",
    ),
    _order(
        "float32 matmul: parts are multiplied before they are made",
        "kernels/matmul/tf32.py",
        "    T.mbarrier_wait_parity(s.split[at], parity)\n",
        "",
        "matmul, persistent, shared depth",
    ),
    _order(
        "shared depth: partial sums are read before they are written",
        "kernels/matmul/shared_depth.py",
        "        T.mbarrier_wait_parity(e.given[part], turn % 2)\n",
        "",
        "matmul, persistent, shared depth",
    ),
    _order(
        "shared depth: partial sums are overwritten before they are read",
        "kernels/matmul/shared_depth.py",
        "        T.mbarrier_wait_parity(e.taken[part], (turn + 1) % 2)\n",
        "",
        "matmul, persistent, shared depth",
    ),
    _order(
        "cluster: received sums are not waited for",
        "kernels/matmul/split.py",
        "            T.mbarrier_wait_parity(all_received[0], 0)\n",
        "",
        "matmul, cluster",
    ),
    _order(
        "cluster: sums are sent over operands that a peer still reads",
        "kernels/matmul/split.py",
        "            T.fence_proxy_async()\n            T.cluster_sync()\n",
        "            T.fence_proxy_async()\n",
        "matmul, cluster",
    ),
    _order(
        "grouped: gathered rows are multiplied without a proxy fence",
        "kernels/grouped_matmul/persistent.py",
        "            if p.rows is not None:\n                T.fence_proxy_async()\n",
        "",
        "grouped, gathered",
    ),
    _order(
        "grouped: a product's slice is given back while it runs",
        "kernels/grouped_matmul/persistent.py",
        "T.wait_wgmma(len(sums))",
        "T.wait_wgmma(len(sums) + 1)",
        "grouped, persistent",
    ),
    _order(
        "scaled: sums are read while their product runs",
        "kernels/scaled_matmul/persistent.py",
        "T.wait_wgmma(slices - 1 - nth)",
        "T.wait_wgmma(slices - nth)",
        "scaled, persistent",
    ),
    _order(
        "prefill: the queries' tile is loaded over the last one",
        "kernels/attention/overlapped.py",
        "        k.q_ring.wait_empty(*k.q_ring.slot(turn))\n",
        "",
        "prefill, persistent",
    ),
    _order(
        "prefill: values are given back while they are multiplied",
        "kernels/attention/overlapped.py",
        "                T.wait_wgmma(0)\n                k.v_ring.arrive_empty(",
        "                k.v_ring.arrive_empty(",
        "prefill, overlapped",
    ),
    _order(
        "prefill: keys are multiplied before they are loaded",
        "kernels/attention/overlapped.py",
        "            k.k_ring.wait_full(at, parity)\n            _score(",
        "            _score(",
        "prefill, overlapped",
    ),
    _order(
        "latent: weights are multiplied without a proxy fence",
        "kernels/attention/latent_alternating.py",
        "    T.fence_proxy_async()\n    T.barrier_arrive(s.weighted[own])",
        "    T.barrier_arrive(s.weighted[own])",
        "latent, alternating",
    ),
    _order(
        "latent: scores of keys that are not loaded",
        "kernels/attention/latent_alternating.py",
        "        T.barrier_wait(s.loaded[(2 * own + nth) * chunks + i], pair & 1)\n",
        "",
        "latent, alternating",
    ),
    _order(
        "latent: the other warpgroup's weights are not waited for",
        "kernels/attention/latent_alternating.py",
        "    T.barrier_wait(s.weighted[other], (pair + other) & 1)\n",
        "",
        "latent, alternating",
    ),
    _order(
        "latent: a part is given back while it is multiplied",
        "kernels/attention/latent_alternating.py",
        "T.wait_wgmma(s.parts - 1 - part)",
        "T.wait_wgmma(s.parts - part)",
        "latent, alternating",
    ),
    _order(
        "builder: no fence between threads' reads and the next bulk load",
        "tkc/builder/async_proxy.py",
        "                ordered.append(tvm.tirx.Evaluate(T.fence_proxy_async()))\n",
        "",
        "matmul, mma",
    ),
    _order(
        "builder: kernels begin before the one before them has ended",
        "tkc/builder/dependent_launch.py",
        "body = tvm.tirx.SeqStmt([tvm.tirx.Evaluate(T.pdl_sync()), statement.body])",
        "body = statement.body",
        "rms",
    ),
)
