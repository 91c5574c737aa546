/* Reads the metrics of the process and its host from /proc, and those of NVIDIA GPUs. */
#include "server/observe/process.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/cpu.h"
#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/runtime/nvml.h"
#include "engine/tensor/device.h"

static void process_set(struct metrics *metrics, enum metric_kind kind, const char *name,
                        const char *help, double value)
{
    metric_set(metrics_get(metrics, kind, name, help, ""), value);
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
    unsigned long long user, system, threads, start_ticks, bytes, pages;
    const double ticks = (double)sysconf(_SC_CLK_TCK), page = (double)sysconf(_SC_PAGESIZE);
    char text[2048];
    const char *at =
        file_read_start("/proc/self/stat", text, sizeof text) ? strrchr(text, ')') : NULL;
    /* Fields 3 to 24 follow the last ')', which ends the command's name. */
    /* NOLINTNEXTLINE(cert-err34-c): the kernel writes numbers that fit */
    if (!at || sscanf(at,
                      ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d "
                      "%llu %*d %llu %llu %llu",
                      &user, &system, &threads, &start_ticks, &bytes, &pages) != 6)
        return;
    process_set(metrics, METRIC_COUNTER, "process_cpu_seconds_total",
                "User and system CPU time in seconds.", (double)(user + system) / ticks);
    process_set(metrics, METRIC_GAUGE, "process_threads", "Threads of the process.",
                (double)threads);
    process_set(metrics, METRIC_GAUGE, "process_virtual_memory_bytes", "Virtual memory in bytes.",
                (double)bytes);
    process_set(metrics, METRIC_GAUGE, "process_resident_memory_bytes", "Resident memory in bytes.",
                (double)pages * page);
    /* Computed once, because setting the clock changes the boot time. */
    struct metric *start = metrics_get(metrics, METRIC_GAUGE, "process_start_time_seconds",
                                       "Start of the process in seconds since 1970.", "");
    if (metric_value(start) == 0)
        metric_set(start, boot_time() + (double)start_ticks / ticks);
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
    /* 3: ".", ".." and the descriptor of `folder` */
    process_set(metrics, METRIC_GAUGE, "process_open_fds", "Open file descriptors.",
                count > 3 ? (double)(count - 3) : 0);
}

/* Reads the host's CPU times since boot, in ticks. */
static bool read_host_times(unsigned long long *ret_busy, unsigned long long *ret_all)
{
    unsigned long long user, nice, system, idle, waiting, irq, soft_irq, stolen;
    char text[512];
    if (!file_read_start("/proc/stat", text, sizeof text) ||
        /* NOLINTNEXTLINE(cert-err34-c): the kernel writes numbers that fit */
        sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle,
               &waiting, &irq, &soft_irq, &stolen) != 8)
        return false;
    *ret_busy = user + nice + system + irq + soft_irq + stolen;
    *ret_all = *ret_busy + idle + waiting;
    return true;
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

static void gpu_show(struct metrics *metrics, const struct gpu_reading *gpu)
{
    const struct {
        const char *name, *help;
        enum metric_kind kind;
        double value;
    } rows[] = {
        {"nv_gpu_utilization", "Share of the time that kernels ran on the GPU, 0 to 1.",
         METRIC_GAUGE, gpu->utilization},
        {"nv_gpu_memory_total_bytes", "Memory of the GPU.", METRIC_GAUGE, gpu->total_bytes},
        {"nv_gpu_memory_used_bytes", "Memory of the GPU in use by all processes.", METRIC_GAUGE,
         gpu->used_bytes},
        {"nv_gpu_power_usage", "Watts that the GPU draws.", METRIC_GAUGE, gpu->power},
        {"nv_gpu_power_limit", "Watts that the GPU may draw.", METRIC_GAUGE, gpu->power_limit},
        {"nv_energy_consumption", "Joules that the GPU has drawn since its driver was loaded.",
         METRIC_COUNTER, gpu->energy},
    };
    char uuid[2 * sizeof gpu->uuid], labels[sizeof uuid + 16];
    snprintf(labels, sizeof labels, "gpu_uuid=\"%s\"",
             metrics_escape(gpu->uuid, uuid, sizeof uuid));
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (!isnan(rows[i].value))
            metric_set(metrics_get(metrics, rows[i].kind, rows[i].name, rows[i].help, labels),
                       rows[i].value);
}

void process_metrics_update(struct metrics *metrics)
{
    struct gpu_reading gpus[DEVICE_MAX];
    update_from_stat(metrics);
    update_files(metrics);
    update_host(metrics);
    const size_t count = nvml_read(gpus, COUNT_OF(gpus));
    for (size_t i = 0; i < count; i++)
        gpu_show(metrics, &gpus[i]);
}
