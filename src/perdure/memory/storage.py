"""Where the inputs of stored samples are kept: next to the network, in host memory or in a file."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from perdure.files import memory_bytes
from perdure.sizes import format_bytes
from perdure.structures import Inputs, leaves, map_leaves

_ALIGNMENT = 64
"""Every tensor in a file starts at a multiple of this."""


class Storage:
    """Allocates memory for stored inputs; labels and logits are always next to the network.

    Args:
        memory_device: "cpu" for the memory of the host even if the network is on a GPU, which
            then accesses it directly over the bus; by default, the device of the network.
        memory_folder: Folder for a memory-mapped temporary file, instead of memory. The file has
            no name and vanishes with its memory or with the process, however that ends.

    Raises:
        ValueError: If the device is not supported, or the folder does not exist.
    """

    def __init__(
        self,
        memory_device: torch.device | str | None = None,
        memory_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        try:
            self.device = None if memory_device is None else torch.device(memory_device)
        except RuntimeError:
            raise ValueError(f"memory_device is {memory_device!r}; expected 'cpu'") from None
        self.folder = None if memory_folder is None else Path(memory_folder)
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"memory_folder is {str(self.folder)!r}, which is not a folder")
        if self.folder is not None and self.device not in (None, torch.device("cpu")):
            raise ValueError(f"memory_device is '{self.device}', but a file is not on a device")

    def check(self, device: torch.device) -> None:
        """Raise ValueError unless a network on `device` can use inputs that are kept here."""
        if self.device is not None and self.device.type not in ("cpu", device.type):
            raise ValueError(
                f"memory_device is '{self.device}'; expected 'cpu' or the network's device, "
                f"'{device}'"
            )

    def on_host(self, device: torch.device) -> bool:
        """Return whether inputs are kept in host memory or a file although this is a GPU."""
        kept = self.folder is not None or (self.device is not None and self.device.type == "cpu")
        return kept and device.type != "cpu"

    def in_host_memory(self, device: torch.device) -> bool:
        """Return whether inputs are kept in host memory."""
        return self.folder is None and (device.type == "cpu" or self.on_host(device))

    def capturable(self, device: torch.device) -> bool:
        """Return whether a CUDA graph can access the inputs: unless the host reads a file."""
        return self.folder is None or device.type == "cpu"

    def allocate(self, like: Inputs, rows: int, device: torch.device) -> Inputs:
        """Allocate zeros for `rows` inputs.

        Args:
            like: Inputs [n, ...] of the same structure, dtypes and shapes.
            rows: Number of inputs.
            device: Device of the network.

        Returns:
            Tensors [rows, ...]: on the CPU if they are in a file, otherwise on `device`.

        Raises:
            ValueError: If the disk has too little room for the file.
        """
        if self.folder is not None:
            return _map_file(self.folder, like, rows)
        if self.on_host(device):
            return map_leaves(lambda leaf: _share(_zeros(leaf, rows, "cpu"), device), like)
        return map_leaves(lambda leaf: _zeros(leaf, rows, device), like)

    def read_ahead(self, inputs: Inputs, rows: Tensor) -> None:
        """Start reading large rows from the file, all at once: one by one takes much longer.

        Args:
            inputs: Result of `allocate`.
            rows: Rows that are about to be read.
        """
        if self.folder is None or not hasattr(mmap, "MADV_WILLNEED"):
            return
        for leaf in leaves(inputs):
            size = _size(leaf, 1)
            for row in rows.tolist() if size >= mmap.PAGESIZE else ():
                start = leaf.data_ptr() + row * size
                page = start // mmap.PAGESIZE * mmap.PAGESIZE
                _advise(page, start + size - page, mmap.MADV_WILLNEED)

    def check_copy(self, inputs: Inputs) -> None:
        """Raise ValueError if inputs in a file are too large to be copied to memory."""
        if self.folder is None:
            return
        size, limit = sum(leaf.nbytes for leaf in leaves(inputs)), memory_bytes()
        if size > limit:
            raise ValueError(
                f"the memory holds {format_bytes(size)} of inputs and a state contains a copy of "
                f"them, but this machine has {format_bytes(limit)} of memory; export the network "
                "instead"
            )


def _zeros(like: Tensor, rows: int, device: torch.device | str) -> Tensor:
    return torch.zeros(rows, *like.shape[1:], dtype=like.dtype, device=device)


# -- files ----------------------------------------------------------------------------------


def _map_file(folder: Path, like: Inputs, rows: int) -> Inputs:
    """Map a new file without a name, as tensors of zeros."""
    sizes = [max(1, -(-_size(leaf, rows) // _ALIGNMENT)) * _ALIGNMENT for leaf in leaves(like)]
    total = sum(sizes)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file, total)
            content = torch.frombuffer(mmap.mmap(file.fileno(), total), dtype=torch.uint8)
    except OSError as error:
        raise ValueError(
            f"memory_folder {str(folder)!r} cannot hold a file of {format_bytes(total)}: "
            f"{error.strerror or error}"
        ) from None
    starts = itertools.accumulate(sizes, initial=0)

    def view(leaf: Tensor) -> Tensor:
        part = content.narrow(0, next(starts), _size(leaf, rows))
        return part.view(leaf.dtype).view(rows, *leaf.shape[1:])

    return map_leaves(view, like)


def _size(leaf: Tensor, rows: int) -> int:
    return rows * math.prod(leaf.shape[1:]) * leaf.element_size()


def _advise(address: int, size: int, advice: int) -> None:
    """Tell the system how mapped memory will be used, which it may ignore."""
    _system().madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)


@cache
def _system() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _reserve(file: IO[bytes], size: int) -> None:
    """Reserve room on the disk: writing to a page without any would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    zeros = bytes(1 << 20)
    for start in range(0, size, len(zeros)):
        file.write(zeros[: size - start])
    file.flush()


# -- host memory of a GPU -------------------------------------------------------------------


class _HostMemory:
    """Pinned host memory in the address space of a GPU, for `torch.as_tensor`.

    Args:
        tensor: Tensor in host memory. It is pinned as it is, because torch's own pinned memory may
            take up to twice as much.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.view(-1).view(torch.uint8)
        address, size = self.tensor.data_ptr(), self.tensor.nbytes
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        try:
            torch.cuda.check_error(runtime.cudaHostRegister(address, size, 0))
        except RuntimeError as error:
            raise ValueError(
                f"memory_device is 'cpu', but {format_bytes(size)} of host memory cannot be "
                f"pinned: {error}"
            ) from None
        self.unpin = partial(runtime.cudaHostUnregister, address)
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
        }

    def __del__(self) -> None:
        if hasattr(self, "unpin") and not sys.is_finalizing():
            torch.cuda.synchronize()
            self.unpin()


def _share(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of a GPU whose data stays in host memory, which it keeps alive.

    Kernels access it over the bus, also inside a CUDA graph.
    """
    with torch.cuda.device(device):
        content: Tensor = torch.as_tensor(_HostMemory(tensor), device=device)
    return content.view(tensor.dtype).view(tensor.shape)
