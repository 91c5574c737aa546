/* System calls that the daemon may make once it has started: seccomp filters.
 *
 * Photos come from strangers, so decode workers have a short list of their own. All other threads
 * share one list, because each of them may load a library or make a thread:
 *
 *     main, signals, supervisor   signals, the pid file, sendto() to systemd
 *     log                         write(), poll()
 *     loader                      files, inotify, new threads, executable memory for libraries
 *                                 and PCRE2's code
 *     HTTP, offload, watcher      accept, send, receive, epoll; /proc and /sys for /metrics
 *     forward passes              memory; futex
 *     decode workers              memory, never executable; futex; write(), which wakes the HTTP
 *                                 thread; writev(); threads, which inherit this list
 *
 * Landlock decides which files are opened, because a filter does not see paths. The lists leave out
 * what only the start needs (socket, bind, listen, connect, setuid, chown) and what no thread ever
 * needs (execve, fork, ptrace, mount, bpf, io_uring, perf_event_open, kexec and so on). With
 * --trace-endpoint, client_calls are allowed too, with --faces registry_calls, and with --zmq-port
 * schedule_calls.
 *
 * Where the CUDA module is loaded, the shared list allows everything but forbidden_calls: the
 * system calls of NVIDIA's closed driver and libraries are not documented.
 *
 * A call that is refused fails with EPERM instead of ending the process: a library that tries an
 * optional call goes on without it. The kernel's audit log names the call (type=1326). clone3 fails
 * with ENOSYS, without a line in that log: its flags are in memory, where no filter sees them. libc
 * then uses clone, which is allowed for threads only.
 *
 * SECCOMP_FILTER_FLAG_SPEC_ALLOW: without this flag, kernels before 5.16 would switch off a part of
 * speculative execution in filtered threads, which would slow the forward pass. */
#include <assert.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "server/app/confine.h"

#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#define ARCHITECTURE 0 /* no filter */
#endif

/* A system call. With has_argument, the rule applies only if (x & mask) == value, where x is the
 * lower 32 bits of the argument. */
struct call_rule {
    int number;
    bool has_argument;
    unsigned argument;
    uint32_t mask, value;
};

#define CALL(name)                                                                                 \
    {                                                                                              \
        .number = SYS_##name                                                                       \
    }
#define CALL_IF(name, index, bits, wanted)                                                         \
    {                                                                                              \
        SYS_##name, true, index, bits, wanted                                                      \
    }
#define SAME UINT32_MAX

/* Allowed in every thread. */
static const struct call_rule basic_calls[] = {
    CALL_IF(mmap, 2, PROT_EXEC, 0), CALL_IF(mprotect, 2, PROT_EXEC, 0), CALL(futex), CALL(write),
    CALL(munmap), CALL(mremap), CALL(madvise), CALL(brk), CALL(clock_gettime), CALL(clock_getres),
    CALL(clock_nanosleep), CALL(nanosleep), CALL(gettimeofday), CALL(getrandom), CALL(getpid),
    CALL(gettid), CALL(sched_yield), CALL(sched_getaffinity), CALL(membarrier), CALL(rt_sigaction),
    CALL(rt_sigprocmask), CALL(rt_sigreturn), CALL(restart_syscall), CALL(sigaltstack),
    CALL(set_robust_list), CALL(rseq), CALL(exit), CALL(exit_group),
    /* libc writes messages such as "malloc(): corrupted top size" */
    CALL(writev),
    /* decoders of AVIF and HEIC make threads */
    CALL_IF(clone, 0, CLONE_THREAD, CLONE_THREAD),
    /* names of threads; names of libc's memory (0x53564d41 is PR_SET_VMA) */
    CALL_IF(prctl, 0, SAME, PR_SET_NAME), CALL_IF(prctl, 0, SAME, PR_GET_NAME),
    CALL_IF(prctl, 0, SAME, 0x53564d41)};

/* Allowed in all threads except decode workers. */
static const struct call_rule server_calls[] = {
    /* connections */
    CALL(recvfrom), CALL(recvmsg), CALL(sendto), CALL(sendmsg), CALL(accept4), CALL(accept),
    CALL(shutdown), CALL(getsockopt), CALL(setsockopt), CALL(getsockname), CALL(getpeername),
    CALL(epoll_ctl), CALL(epoll_pwait), CALL(ppoll), CALL(pselect6), CALL(eventfd2),
    CALL_IF(ioctl, 1, SAME, FIONBIO), CALL_IF(ioctl, 1, SAME, FIONREAD),
    CALL_IF(ioctl, 1, SAME, TCGETS), /* isatty() */
    /* files */
    CALL(read), CALL(pread64), CALL(lseek), CALL(close), CALL(openat), CALL(openat2), CALL(fstat),
    CALL(newfstatat), CALL(statx), CALL(faccessat), CALL(faccessat2), CALL(readlinkat),
    CALL(getcwd), CALL(getdents64), CALL(fcntl), CALL(flock), CALL(fsync), CALL(mkdirat),
    CALL(unlinkat), CALL(renameat), CALL(renameat2), CALL(inotify_init1), CALL(inotify_add_watch),
    CALL(inotify_rm_watch),
    /* the process; mmap and mprotect also with PROT_EXEC, for libraries and PCRE2's code */
    CALL(mmap), CALL(mprotect), CALL_IF(prlimit64, 0, SAME, 0), /* only its own limits */
    CALL(getrusage), CALL(sysinfo), CALL(uname), CALL(getuid), CALL(geteuid), CALL(getgid),
    CALL(getegid), CALL(set_tid_address), CALL(rt_sigtimedwait),
    CALL(seccomp), /* another filter can only restrict further */
#ifdef __x86_64__
    /* older calls that libc uses on x86-64; arch_prctl permits AMX tiles */
    CALL(access), CALL(epoll_wait), CALL(lstat), CALL(mkdir), CALL(open), CALL(poll),
    CALL(readlink), CALL(rename), CALL(rmdir), CALL(select), CALL(stat), CALL(unlink),
    CALL(arch_prctl)
#endif
};

/* Allowed with --trace-endpoint, for libcurl and the resolver; Landlock limits TCP to one port. */
static const struct call_rule client_calls[] = {CALL(socket),     CALL(connect), CALL(bind),
                                                CALL(socketpair), CALL(pipe2),   CALL(sendmmsg)};

/* Allowed with --faces, for SQLite. */
static const struct call_rule registry_calls[] = {
    CALL(pwrite64), CALL(ftruncate), CALL(fdatasync), CALL(fchmod), CALL(utimensat),
};

/* Allowed with --zmq-port. Every thread of libzmq sets its scheduling policy, and libzmq aborts the
 * process if that fails. */
static const struct call_rule schedule_calls[] = {
    CALL(sched_getparam), CALL(sched_getscheduler),
    CALL_IF(sched_setscheduler, 1, SAME, SCHED_OTHER)};

/* Refused even where most calls are allowed, unless basic_calls allows them. */
static const struct call_rule forbidden_calls[] = {
    /* start programs, or affect other processes */
    CALL(clone), CALL(execve), CALL(execveat), CALL(ptrace), CALL(process_vm_readv),
    CALL(process_vm_writev), CALL(kcmp), CALL(pidfd_getfd), CALL(kill), CALL(tkill),
    /* change mounts, or open files by handle */
    CALL(mount), CALL(umount2), CALL(mount_setattr), CALL(move_mount), CALL(open_tree),
    CALL(fsopen), CALL(fspick), CALL(fsconfig), CALL(fsmount), CALL(pivot_root), CALL(chroot),
    CALL(setns), CALL(unshare), CALL(swapon), CALL(swapoff), CALL(quotactl), CALL(acct),
    CALL(name_to_handle_at), CALL(open_by_handle_at),
    /* affect the kernel */
    CALL(bpf), CALL(perf_event_open), CALL(userfaultfd), CALL(io_uring_setup), CALL(io_uring_enter),
    CALL(io_uring_register), CALL(kexec_load), CALL(kexec_file_load), CALL(init_module),
    CALL(finit_module), CALL(delete_module), CALL(add_key), CALL(request_key), CALL(keyctl),
    CALL(reboot), CALL(syslog), CALL(personality), CALL(settimeofday), CALL(clock_settime),
    CALL(clock_adjtime), CALL(adjtimex), CALL(sethostname), CALL(setdomainname),
    /* change users, capabilities and owners */
    CALL(setuid), CALL(setgid), CALL(setreuid), CALL(setregid), CALL(setresuid), CALL(setresgid),
    CALL(setgroups), CALL(setfsuid), CALL(setfsgid), CALL(capset), CALL(fchown), CALL(fchownat),
#ifdef __x86_64__
    CALL(fork), CALL(vfork), CALL(chown), CALL(lchown), CALL(iopl), CALL(ioperm), CALL(modify_ldt),
    CALL(uselib)
#endif
};

enum { PROGRAM_MOST = 1024 };

struct call_filter {
    struct sock_filter code[PROGRAM_MOST];
    unsigned short length;
};

#define ALLOW  SECCOMP_RET_ALLOW
#define REFUSE (SECCOMP_RET_ERRNO | EPERM)
#define ABSENT (SECCOMP_RET_ERRNO | ENOSYS)

/* Appends an instruction. jump_true, jump_false: how many instructions a jump skips. */
static void filter_put(struct call_filter *filter, unsigned code, uint32_t k, unsigned jump_true,
                       unsigned jump_false)
{
    assert(filter->length < PROGRAM_MOST);
    filter->code[filter->length++] =
        (struct sock_filter){(uint16_t)code, (uint8_t)jump_true, (uint8_t)jump_false, k};
}

static void filter_load(struct call_filter *filter, size_t offset)
{
    filter_put(filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void filter_answer(struct call_filter *filter, uint32_t answer)
{
    filter_put(filter, BPF_RET | BPF_K, answer, 0, 0);
}

/* Begins a filter that refuses calls of other architectures (32-bit, x32), because their numbers
 * mean other calls. */
static void filter_begin(struct call_filter *filter)
{
    filter->length = 0;
    filter_load(filter, offsetof(struct seccomp_data, arch));
    filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    filter_answer(filter, REFUSE);
    filter_load(filter, offsetof(struct seccomp_data, nr));
#ifdef __x86_64__
    filter_put(filter, BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1); /* x32 */
    filter_answer(filter, REFUSE);
#endif
}

/* Appends instructions that return `answer` for the calls in `rules`. For other calls, the filter
 * continues with the instructions that are appended next. */
static void filter_add(struct call_filter *filter, const struct call_rule *rules, size_t count,
                       uint32_t answer)
{
    for (size_t i = 0; i < count; i++) {
        const struct call_rule *rule = &rules[i];
        const uint32_t number = (uint32_t)rule->number;
        if (!rule->has_argument) {
            filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
            filter_answer(filter, answer);
            continue;
        }
        /* The argument's lower 32 bits come first: x86-64 and arm64 are little-endian. */
        filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, number, 0, 5);
        filter_load(filter, offsetof(struct seccomp_data, args) + 8 * (size_t)rule->argument);
        filter_put(filter, BPF_ALU | BPF_AND | BPF_K, rule->mask, 0, 0);
        filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, rule->value, 0, 1);
        filter_answer(filter, answer);
        filter_load(filter, offsetof(struct seccomp_data, nr));
    }
}

/* Allows basic_calls, and signals to threads of this process, for abort() and pthread_cancel(). */
static void filter_add_basic(struct call_filter *filter)
{
    const struct call_rule own[] = {CALL_IF(tgkill, 0, SAME, (uint32_t)getpid()),
                                    CALL(clone3)}; /* hide_clone3()'s filter refuses it */
    filter_add(filter, basic_calls, COUNT_OF(basic_calls), ALLOW);
    filter_add(filter, own, COUNT_OF(own), ALLOW);
}

/* Installs the filter; returns false and sets errno on failure. */
static bool filter_install(struct call_filter *filter, uint32_t otherwise, unsigned flags)
{
    filter_answer(filter, otherwise);
    struct sock_fprog program = {filter->length, filter->code};
    errno = EBUSY; /* for a positive result: the ID of a thread where TSYNC failed */
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags | SECCOMP_FILTER_FLAG_SPEC_ALLOW,
                   &program) == 0;
}

/* Refuses clone3 without a line in the audit log for each new thread. */
static bool hide_clone3(struct call_filter *filter)
{
    static const struct call_rule hidden[] = {CALL(clone3)};
    filter_begin(filter);
    filter_add(filter, hidden, COUNT_OF(hidden), ABSENT);
    return filter_install(filter, ALLOW, SECCOMP_FILTER_FLAG_TSYNC);
}

static bool filter_all_threads(const struct config *config, bool is_wide)
{
    struct call_filter filter;
    if (!hide_clone3(&filter))
        return false;
    filter_begin(&filter);
    filter_add_basic(&filter);
    if (is_wide) {
        filter_add(&filter, forbidden_calls, COUNT_OF(forbidden_calls), REFUSE);
    } else {
        filter_add(&filter, server_calls, COUNT_OF(server_calls), ALLOW);
        if (config->faces)
            filter_add(&filter, registry_calls, COUNT_OF(registry_calls), ALLOW);
        if (config->http.zmq_port)
            filter_add(&filter, schedule_calls, COUNT_OF(schedule_calls), ALLOW);
        if (config->trace_endpoint)
            filter_add(&filter, client_calls, COUNT_OF(client_calls), ALLOW);
    }
    return filter_install(&filter, is_wide ? ALLOW : REFUSE,
                          SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_LOG);
}

void confine_calls(const struct config *config, struct confinement *confinement)
{
    confinement->seccomp = ARCHITECTURE && filter_all_threads(config, confinement->is_wide);
    if (!confinement->seccomp)
        text_append(confinement->missing, sizeof confinement->missing, "; ", "no seccomp: %s",
                    ARCHITECTURE ? strerror(errno) : "not for this processor");
    char *text = confinement->text;
    const size_t size = sizeof confinement->text;
    snprintf(text, size, "%s", confinement->seccomp ? "seccomp" : "");
    if (confinement->landlock)
        text_append(text, size, ", ", "Landlock %d", confinement->landlock);
    if (text[0] && confinement->is_wide)
        text_append(text, size, "", " (wider, for CUDA)");
    if (confinement->missing[0])
        text_append(text, size, "; ", "%s", confinement->missing);
}

void confine_decode_worker(void)
{
    struct call_filter filter;
    if (!ARCHITECTURE)
        return;
    filter_begin(&filter);
    filter_add_basic(&filter);
    (void)filter_install(&filter, REFUSE, SECCOMP_FILTER_FLAG_LOG);
}
