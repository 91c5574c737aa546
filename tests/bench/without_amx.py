#!/usr/bin/env python3
"""Runs a command that cannot use AMX: what it would do on an x86-64 CPU with AVX-512 VNNI and no AMX.

    without_amx.py COMMAND [ARGUMENT ...]

Linux lets a process use AMX only after arch_prctl(ARCH_REQ_XCOMP_PERM). A seccomp filter refuses that call
to the command and to all that it starts. lensd's libraries, ONNX Runtime and OpenVINO then take their
kernels for AVX-512. CPUID still names AMX, so `lensd devices` does, too.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

SYS_ARCH_PRCTL = 158  # x86-64
ARCH_REQ_XCOMP_PERM = 0x1023
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PR_SET_NO_NEW_PRIVS = 38
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
# struct sock_filter: code, jump if true, jump if false, k. struct seccomp_data: nr at 0, args[0] at 16.
FILTER = [
    (LOAD, 0, 0, 0),
    (JUMP_IF_EQUAL, 0, 3, SYS_ARCH_PRCTL),
    (LOAD, 0, 0, 16),
    (JUMP_IF_EQUAL, 0, 1, ARCH_REQ_XCOMP_PERM),
    (RETURN, 0, 0, ERRNO | errno.EPERM),
    (RETURN, 0, 0, ALLOW),
]


class Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def refuse_amx():
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(struct.pack("=HBBI", *step) for step in FILTER)
    program = Program(len(FILTER), code)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or \
            libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)):
        sys.exit(f"without_amx: seccomp: {os.strerror(ctypes.get_errno())}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if platform.machine() != "x86_64":
        sys.exit("without_amx: only x86-64 has AMX")
    refuse_amx()
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
