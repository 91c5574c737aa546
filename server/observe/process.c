/* Reads /proc for the process and host metrics.
 *
 * Locks: one guards the last CPU times of the host; no I/O while it is held. */
#include "server/observe/process.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/cpu.h"
#include "engine/base/size.h"

static void process_set(struct metrics *metrics, enum metric_kind kind, const char *name,
                        const char *help, double value)
{
    metric_set(metrics_get(metrics, kind, name, help, ""), value);
}

/* Reads the numbers of /proc/self/stat; ret[0] is field 4. Skips the command's name, which may
 * contain any byte. Returns how many it read. */
static size_t read_stat(unsigned long long *ret, size_t max)
{
    char text[2048];
    FILE *file = fopen("/proc/self/stat", "re");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0, count = 0;
    if (file)
        fclose(file);
    text[size] = '\0';
    const char *at = strrchr(text, ')');
    if (!at || strlen(at) < 4)
        return 0;
    for (at += 3; count < max && *at; count++) { /* ") S" */
        char *end;
        ret[count] = strtoull(at, &end, 10);
        if (end == at)
            break;
        at = end;
    }
    return count;
}

/* Returns the boot time of the machine, in seconds since 1970. */
static double boot_time(void)
{
    struct timespec now, up;
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &up);
    return (double)(now.tv_sec - up.tv_sec) + (double)(now.tv_nsec - up.tv_nsec) * 1e-9;
}

static void update_from_stat(struct metrics *metrics)
{
    enum { UTIME = 14, STIME = 15, THREADS = 20, STARTTIME = 22, VSIZE = 23, RSS = 24, FIRST = 4 };
    unsigned long long fields[RSS - FIRST + 1];
    double ticks = (double)sysconf(_SC_CLK_TCK), page = (double)sysconf(_SC_PAGESIZE);
    if (read_stat(fields, COUNT_OF(fields)) < COUNT_OF(fields))
        return;
    process_set(metrics, METRIC_COUNTER, "process_cpu_seconds_total",
                "User and system CPU time in seconds.",
                (double)(fields[UTIME - FIRST] + fields[STIME - FIRST]) / ticks);
    process_set(metrics, METRIC_GAUGE, "process_threads", "Threads of the process.",
                (double)fields[THREADS - FIRST]);
    process_set(metrics, METRIC_GAUGE, "process_virtual_memory_bytes", "Virtual memory in bytes.",
                (double)fields[VSIZE - FIRST]);
    process_set(metrics, METRIC_GAUGE, "process_resident_memory_bytes", "Resident memory in bytes.",
                (double)fields[RSS - FIRST] * page);
    /* Computed once, because setting the clock changes the boot time. */
    struct metric *start = metrics_get(metrics, METRIC_GAUGE, "process_start_time_seconds",
                                       "Start of the process in seconds since 1970.", "");
    if (metric_value(start) == 0)
        metric_set(start, boot_time() + (double)fields[STARTTIME - FIRST] / ticks);
}

static void update_files(struct metrics *metrics)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        process_set(metrics, METRIC_GAUGE, "process_max_fds", "Limit of open file descriptors.",
                    (double)limit.rlim_cur);
    DIR *folder = opendir("/proc/self/fd");
    if (!folder)
        return;
    size_t count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    /* Does not count ".", ".." and the descriptor that reads the folder. */
    process_set(metrics, METRIC_GAUGE, "process_open_fds", "Open file descriptors.",
                count > 3 ? (double)(count - 3) : 0);
}

/* Reads the host's CPU times since boot, in ticks. */
static bool read_host_times(unsigned long long *ret_busy, unsigned long long *ret_all)
{
    enum { IDLE = 3, IOWAIT = 4, USED = 8 }; /* user nice system idle iowait irq softirq steal */
    char line[512] = "";
    FILE *file = fopen("/proc/stat", "re");
    bool read = file && fgets(line, sizeof line, file) && !strncmp(line, "cpu ", 4);
    if (file)
        fclose(file);
    const char *at = line + 4;
    *ret_busy = *ret_all = 0;
    for (int i = 0; read && i < USED; i++) {
        char *end;
        unsigned long long ticks = strtoull(at, &end, 10);
        read = end != at;
        at = end;
        *ret_all += ticks;
        if (i != IDLE && i != IOWAIT)
            *ret_busy += ticks;
    }
    return read;
}

static void update_host(struct metrics *metrics)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static unsigned long long last_busy, last_all; /* guarded by lock */
    unsigned long long busy, all;
    if (read_host_times(&busy, &all)) {
        pthread_mutex_lock(&lock);
        unsigned long long passed = all - last_all, worked = busy - last_busy;
        bool moved = all > last_all && busy >= last_busy;
        last_busy = busy;
        last_all = all;
        pthread_mutex_unlock(&lock);
        if (moved)
            process_set(metrics, METRIC_GAUGE, "nv_cpu_utilization",
                        "CPU utilization of the host since the previous scrape, 0 to 1.",
                        (double)worked / (double)passed);
    }
    uint64_t total, available;
    cpu_memory(&total, &available);
    process_set(metrics, METRIC_GAUGE, "nv_cpu_memory_total_bytes", "Memory this process may use.",
                (double)total);
    process_set(metrics, METRIC_GAUGE, "nv_cpu_memory_used_bytes",
                "Memory in use, out of the memory that this process may use.",
                (double)(available < total ? total - available : 0));
}

void process_metrics_update(struct metrics *metrics)
{
    if (!metrics)
        return;
    update_from_stat(metrics);
    update_files(metrics);
    update_host(metrics);
}
