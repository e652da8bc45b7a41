"""GPU kernels, in Triton, for what torch does in several passes over memory.

Imported only where a GPU is at work: Triton comes with torch's builds for GPUs. Whatever has a
kernel here is also written in plain torch operations beside its use, which is what a CPU runs.
"""
