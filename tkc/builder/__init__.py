"""The kernel builder: TileLang kernels compiled to shared libraries, in processes of their own, cached by content."""

from tkc.builder.cache import KernelCache, cache_folder
from tkc.builder.client import BuilderSettings, KernelBuilder
from tkc.kernels.kernel_library import KernelLibrary

__all__ = ["BuilderSettings", "KernelBuilder", "KernelCache", "KernelLibrary", "cache_folder"]
