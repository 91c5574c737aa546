/* System calls that the daemon refuses to all of its threads. */
#pragma once

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOTHING ((long)0)

/* Calls that do no harm if they are made: their arguments are wrong, or change nothing. */
static const struct {
    const char *name;
    long number, arguments[5];
    bool is_open_for_cuda;
} forbidden[] = {
    {"execve", SYS_execve, {NOTHING}},
    {"execveat", SYS_execveat, {-1}},
    {"clone", SYS_clone, {CLONE_SIGHAND}},
    {"ptrace", SYS_ptrace, {PTRACE_CONT, INT_MAX}},
    {"process_vm_readv", SYS_process_vm_readv, {INT_MAX}},
    {"process_vm_writev", SYS_process_vm_writev, {INT_MAX}},
    {"kill", SYS_kill, {INT_MAX}},
    {"tgkill", SYS_tgkill, {INT_MAX, INT_MAX}, true},
    {"mount", SYS_mount, {NOTHING}},
    {"umount2", SYS_umount2, {NOTHING}},
    {"pivot_root", SYS_pivot_root, {NOTHING}},
    {"chroot", SYS_chroot, {NOTHING}},
    {"unshare", SYS_unshare, {-1}},
    {"setns", SYS_setns, {-1}},
    {"swapon", SYS_swapon, {NOTHING}},
    {"bpf", SYS_bpf, {-1}},
    {"perf_event_open", SYS_perf_event_open, {NOTHING, NOTHING, -1, -1}},
    {"userfaultfd", SYS_userfaultfd, {-1}},
    {"io_uring_setup", SYS_io_uring_setup, {0, NOTHING}},
    {"kexec_load", SYS_kexec_load, {NOTHING, INT_MAX}},
    {"init_module", SYS_init_module, {NOTHING}},
    {"open_by_handle_at", SYS_open_by_handle_at, {-1}},
    {"keyctl", SYS_keyctl, {INT_MAX}},
    {"reboot", SYS_reboot, {NOTHING}},
    {"setuid", SYS_setuid, {-1}},
    {"setgid", SYS_setgid, {-1}},
    {"capset", SYS_capset, {NOTHING}},
    {"fchown", SYS_fchown, {-1}},
    {"socket", SYS_socket, {-1}, true},
    {"bind", SYS_bind, {-1}, true},
    {"listen", SYS_listen, {-1}, true},
    {"connect", SYS_connect, {-1}, true},
    {"fchmod", SYS_fchmod, {-1}, true},
    {"symlinkat", SYS_symlinkat, {NOTHING, -1}, true},
    {"mknodat", SYS_mknodat, {-1}, true},
    {"memfd_create", SYS_memfd_create, {NOTHING}, true},
    {"ioctl", SYS_ioctl, {-1, 0x5412 /* TIOCSTI: types into a terminal */}, true},
    {"prctl", SYS_prctl, {PR_SET_DUMPABLE, 2}, true},
    {"prlimit64", SYS_prlimit64, {INT_MAX}, true},
};
