"""cffi's view of native/probe/probe.h, as cffi wrote it (`FFI.emit_python_code`) and formatted.

Parsing the header when kt starts would take a third of the time of `kt doctor`. A test compares
this file with what cffi makes of the header.
"""

import _cffi_backend

ffi = _cffi_backend.FFI(
    "kt.machine.probe_abi",
    _version=0x2601,
    _types=(
        b"\x00\x00\x0c\x0d\x00\x00\x15\x01\x00\x00\x00\x0f\x00\x00\x0c\x0d\x00\x00\x00\x0f"
        b"\x00\x00\x09\x0d\x00\x00\x01\x03\x00\x00\x15\x01\x00\x00\x17\x01\x00\x00\x0e\x01"
        b"\x00\x00\x00\x0f\x00\x00\x01\x0d\x00\x00\x13\x03\x00\x00\x15\x01\x00\x00\x00\x0f"
        b"\x00\x00\x01\x0d\x00\x00\x00\x0f\x00\x00\x14\x0d\x00\x00\x00\x0f\x00\x00\x02\x01"
        b"\x00\x00\x18\x01"
    ),
    _globals=(
        b"\x00\x00\x0f#kt_probe_amx_permission",
        0,
        b"\x00\x00\x00#kt_probe_flag_name",
        0,
        b"\x00\x00\x11#kt_probe_flags",
        0,
        b"\x00\x00\x0b#kt_probe_guard_maps",
        0,
        b"\x00\x00\x03#kt_probe_model",
        0,
        b"\x00\x00\x05#kt_probe_read_bandwidth",
        0,
        b"\x00\x00\x03#kt_probe_vendor",
        0,
        b"\x00\x00\x0f#kt_probe_version",
        0,
    ),
)
