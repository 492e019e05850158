"""The C ABI of the kernel libraries, parsed from the header that they were compiled with."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import cffi

from kt.errors import MachineError

LIBRARIES = Path(__file__).parent / "lib"
INSTALL_AGAIN = "Build and install kt again: `make run`, or `pip install .`, in the source tree."
VERSION = 8


@cache
def ffi() -> cffi.FFI:
    """cffi's view of kt.h. Raises MachineError if kt was not built."""
    header = LIBRARIES / "kt.h"
    try:
        text = header.read_text()
    except OSError:
        raise MachineError(
            f"kt's native kernels are not installed ({header} is missing)",
            hint=INSTALL_AGAIN,
        ) from None
    parsed = cffi.FFI()
    parsed.cdef(declarations(text))
    return parsed


def declarations(header: str) -> str:
    """The plain C of a header: no preprocessor lines, no extern "C"."""
    without_cplusplus = re.sub(r"#ifdef __cplusplus.*?#endif", "", header, flags=re.DOTALL)
    return re.sub(r"^#.*$", "", without_cplusplus, flags=re.MULTILINE)
