"""Which tiles of a matrix product this machine's CPU holds in registers."""

from tkc.kernels.matmul.tiling import Tiling


def cpu_tilings(weight_layout: str, dtype: str) -> tuple[Tiling, ...]:
    """The tilings to choose from, the default first, for weights contiguous along ``k`` (``nk``) or ``n`` (``kn``).

    Lanes of vector registers run along what weights are contiguous in. AVX-512 has 32 registers of 16 float32. All
    others hold half of that at the most; there a tile of one row needs no registers for weights, which the products
    take from memory, unless they must be widened from ``dtype`` first.
    """
    import torch  # asked here, since nothing else of what builds kernels needs it

    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        shapes = {"nk": ((4, 4, 16), (4, 2, 16)), "kn": ((6, 64, 1), (8, 32, 1))}[weight_layout]
    elif weight_layout == "kn":
        shapes = ((6, 16, 1), (5, 16, 1))
    elif dtype == "float32":
        shapes = ((1, 4, 16), (2, 2, 16))
    else:
        shapes = ((4, 4, 16), (2, 3, 16))
    return tuple(Tiling(*shape, stages=1, threads=1) for shape in shapes)
