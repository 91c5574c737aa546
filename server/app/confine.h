/* The daemon confines itself. After the start it can run no program, open only files that serving
 * needs, connect only to the collector of --trace-endpoint, and make no rare system calls. So a bug
 * in a decoder or a hostile model can do less harm.
 *
 *     process_protect()       sets no_new_privs, which the next steps need unless they run as root
 *     confine_files()         Landlock and fewer capabilities, while there is one thread; later
 *                             threads inherit these limits
 *     threads start, the port opens, the pid and port files are written, root's rights are dropped
 *     confine_calls()         a seccomp filter in all threads; later threads inherit it
 *     models load
 *     confine_decode_worker() a narrower seccomp filter in each decode worker
 *
 * No step can be undone. confine_files.c and confine_calls.c explain what they allow. */
#pragma once

#include <stdbool.h>

#include "server/app/config.h"

/* A sanitizer build does not confine itself, because sanitizers open files for their reports, trace
 * the process to find leaks and run a symbolizer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CONFINE_IN_THIS_BUILD false
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CONFINE_IN_THIS_BUILD false
#endif
#endif
#ifndef CONFINE_IN_THIS_BUILD
#define CONFINE_IN_THIS_BUILD true
#endif

/* The restrictions in force. */
struct confinement {
    int landlock; /* version of Landlock's ABI; 0: no Landlock */
    bool seccomp;
    bool is_wide;      /* the CUDA module is loaded, so the rules allow more */
    char missing[256]; /* restrictions that could not be set, and why; "": none */
    char text[320];    /* for /health, such as "seccomp, Landlock 4"; confine_calls() sets it */
};

/* Restricts the calling thread, and threads that it starts, to the files and folders in `config`
 * and those that libraries need. Root gives up most capabilities. Files that do not exist get no
 * rule. If the kernel lacks Landlock, ret->missing says so. */
void confine_files(const struct config *config, struct confinement *ret);

/* Restricts the system calls of all threads to those that `config` needs, and completes
 * *confinement. If the kernel lacks seccomp, confinement->missing says so. Call it before any
 * decode worker confines itself. */
void confine_calls(const struct config *config, struct confinement *confinement);

/* Restricts the calling thread to the system calls that decoding needs. A failure is ignored. */
void confine_decode_worker(void);
