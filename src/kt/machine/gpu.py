"""Accelerators: from NVML, from the kernel's files, and from torch only when asked for."""

from __future__ import annotations

import importlib.util
from typing import Any

from kt.machine.facts import Gpu
from kt.machine.tree import Tree

DRM = "/sys/class/drm"
NVIDIA_DRIVER = ("/proc/driver/nvidia/version", "/dev/dxg")  # Linux, WSL


def read(tree: Tree, *, torch: bool = False) -> tuple[Gpu, ...]:
    """Every accelerator found. `torch`: ask torch (seconds to import) if it is installed and the
    quick sources found nothing."""
    found = (*_nvidia(tree), *_amd(tree))
    if not found and torch and tree.live:
        found = _torch()
    return tuple(found)


def _nvidia(tree: Tree) -> tuple[Gpu, ...]:
    """Without a driver NVML cannot answer, and importing it takes longer than looking."""
    if not tree.live or not any(tree.path(name).exists() for name in NVIDIA_DRIVER):
        return ()
    if importlib.util.find_spec("pynvml") is None:
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        return tuple(_nvml_gpu(tree, pynvml, i, driver) for i in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpu(tree: Tree, nvml: Any, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    # NVML writes the PCI domain with eight digits, /sys with four.
    address = str(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()[-12:]
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        total=int(memory.total),
        free=int(memory.free),
        source="nvml",
        driver=driver,
        capability=f"{major}.{minor}",
        node=_numa_node(tree, f"/sys/bus/pci/devices/{address}"),
    )


def _amd(tree: Tree) -> tuple[Gpu, ...]:
    """amdgpu tells its memory in /sys."""
    gpus: list[Gpu] = []
    for card in tree.numbered(DRM, "card"):
        device = f"{DRM}/card{card}/device"
        total = tree.number(f"{device}/mem_info_vram_total")
        if tree.text(f"{device}/vendor") == "0x1002" and total:
            used = tree.number(f"{device}/mem_info_vram_used") or 0
            name = tree.text(f"{device}/product_name") or f"AMD {tree.text(f'{device}/device')}"
            node = _numa_node(tree, device)
            gpus.append(Gpu(len(gpus), name, total, total - used, "sysfs", "amdgpu", node=node))
    return tuple(gpus)


def _numa_node(tree: Tree, device: str) -> int | None:
    node = tree.number(f"{device}/numa_node")
    return node if node is not None and node >= 0 else None


def _torch() -> tuple[Gpu, ...]:
    """What torch would run on: CUDA (which is also ROCm's name there), else XPU."""
    if importlib.util.find_spec("torch") is None:
        return ()
    import torch

    backend: Any = next((b for b in (torch.cuda, torch.xpu) if b.is_available()), None)
    if backend is None:
        return ()
    gpus = []
    for index in range(backend.device_count()):
        free, total = backend.mem_get_info(index)
        gpus.append(Gpu(index, backend.get_device_name(index), total, free, "torch"))
    return tuple(gpus)
