"""What warp-specialized Hopper kernels share: ring of stages, tile scheduler, epilogue store, warpgroup roles."""
