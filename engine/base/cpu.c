/* Detects the host's resources for the process: cores from the affinity mask and the cgroup quota,
 * memory from /proc/meminfo and the cgroup. cpu_x86.c and cpu_arm.c detect instruction sets. */
#include "engine/base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "engine/base/file.h"

#define CGROUP_ROOT "/sys/fs/cgroup"

/* ---- cgroups ---- */

/* Reads a limit in one folder of a cgroup, of version 1 or 2, into *ret. */
typedef void (*limit_reader)(const char *folder, bool is_v2, void *ret);

/* Calls read() for the folder of `group` and each parent up to `root`: all their limits apply. */
static void read_along(const char *root, const char *group, bool is_v2, limit_reader read,
                       void *ret)
{
    char folder[4096];
    int n = snprintf(folder, sizeof folder, "%s%s", root, strcmp(group, "/") ? group : "");
    if (n < 0 || (size_t)n >= sizeof folder)
        return;
    size_t root_length = strlen(root);
    for (;;) {
        read(folder, is_v2, ret);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < root_length)
            return;
        *slash = '\0';
    }
}

static bool names_controller(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (; *list; list += strcspn(list, ","), list += *list == ',')
        if (!strncmp(list, name, length) && (list[length] == ',' || !list[length]))
            return true;
    return false;
}

/* Lines are "hierarchy:controllers:path"; v2 is "0::path", v1 names its controllers, one of which
 * is `v1`. In a container a group's own path may be invisible, so the root is always read. */
static void read_cgroups(const char *root, const char *proc_cgroup, const char *v1,
                         limit_reader read, void *ret)
{
    const char *line = proc_cgroup;
    while (line && *line) {
        size_t length = strcspn(line, "\n");
        char text[4096], base[4096];
        snprintf(text, sizeof text, "%.*s", (int)(length < 4000 ? length : 4000), line);
        line = line[length] ? line + length + 1 : NULL;
        char *controllers = strchr(text, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        if (!*controllers) {
            read_along(root, group, true, read, ret);
        } else if (names_controller(controllers, v1)) {
            snprintf(base, sizeof base, "%s/%s", root, controllers); /* "cpu,cpuacct" */
            read_along(base, group, false, read, ret);
            snprintf(base, sizeof base, "%s/%s", root, v1);
            if (strcmp(controllers, v1) != 0)
                read_along(base, group, false, read, ret);
        }
    }
}

static uint64_t number_in(const char *folder, const char *name)
{
    char path[4352], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!file_read_start(path, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return 0;
    return strtoull(text, NULL, 10);
}

/* Reads v2's cpu.max, "150000 100000" or "max 100000", or v1's two files, where -1 means no quota.
 */
static void read_quota(const char *folder, bool is_v2, void *ret)
{
    double *smallest = ret;
    char path[4352], text[64] = "", *end;
    double quota, period;
    if (is_v2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        (void)file_read_start(path, text, sizeof text);
        quota = strtod(text, &end);
        period = strtod(end, NULL);
    } else {
        quota = (double)number_in(folder, "cpu.cfs_quota_us");
        period = (double)number_in(folder, "cpu.cfs_period_us");
    }
    if (quota > 0 && period > 0 && (*smallest == 0 || quota / period < *smallest))
        *smallest = quota / period;
}

double cpu_cgroup_quota(const char *root, const char *proc_cgroup)
{
    double smallest = 0;
    read_cgroups(root, proc_cgroup, "cpu", read_quota, &smallest);
    return smallest;
}

struct memory_left {
    uint64_t total, free;
};

static void keep_less(uint64_t limit, uint64_t used, struct memory_left *left)
{
    if (limit < left->total)
        left->total = limit;
    uint64_t free = used < limit ? limit - used : 0;
    if (free < left->free)
        left->free = free;
}

/* Bytes of cached file pages: the cgroup counts them as used, but the kernel can reclaim them. */
static uint64_t file_pages(const char *folder, const char *active, const char *inactive)
{
    char path[4352], text[16384];
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (!file_read_start(path, text, sizeof text))
        return 0;
    uint64_t sum = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        char *value = strchr(line, ' ');
        if (!value)
            continue;
        *value++ = '\0';
        if (!strcmp(line, active) || !strcmp(line, inactive))
            sum += strtoull(value, NULL, 10);
    }
    return sum;
}

static void read_memory(const char *folder, bool is_v2, void *left)
{
    const uint64_t limit = number_in(folder, is_v2 ? "memory.max" : "memory.limit_in_bytes");
    const uint64_t used = number_in(folder, is_v2 ? "memory.current" : "memory.usage_in_bytes");
    if (!limit)
        return;
    const uint64_t files = file_pages(folder, is_v2 ? "active_file" : "total_active_file",
                                      is_v2 ? "inactive_file" : "total_inactive_file");
    keep_less(limit, files < used ? used - files : 0, left);
}

void cpu_cgroup_memory(const char *root, const char *proc_cgroup, uint64_t *total, uint64_t *free)
{
    struct memory_left left = {*total, *free};
    read_cgroups(root, proc_cgroup, "memory", read_memory, &left);
    *total = left.total;
    *free = left.free;
}

static int available_cores;
static struct cpu_features features;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int affinity_cores(void)
{
    cpu_set_t sets[64]; /* 65,536 CPUs; Linux can be built for 8,192 */
    const int count =
        sched_getaffinity(0, sizeof sets, sets) == 0 ? CPU_COUNT_S(sizeof sets, sets) : 0;
    return count > 0 ? count : 1;
}

static void read_once(void)
{
    char text[16384];
    int cores = affinity_cores();
    if (file_read_start("/proc/self/cgroup", text, sizeof text)) {
        double quota = cpu_cgroup_quota(CGROUP_ROOT, text);
        if (quota > 0 && quota < cores)
            cores = quota < 1 ? 1 : (int)quota;
    }
    available_cores = cores;
    cpu_read_features(&features);
}

int cpu_available_cores(void)
{
    pthread_once(&once, read_once);
    return available_cores;
}

const struct cpu_features *cpu_features(void)
{
    pthread_once(&once, read_once);
    return &features;
}

void cpu_model_name(char *text, size_t size)
{
    snprintf(text, size, "%s CPU", cpu_architecture);
    char info[4096]; /* the text for the first processor */
    if (!file_read_start("/proc/cpuinfo", info, sizeof info))
        return;
    const char *value = strstr(info, "\nmodel name");
    if (!value || !(value = strchr(value, ':')))
        return;
    value += strspn(value, ": \t");
    snprintf(text, size, "%.*s", (int)strcspn(value, "\n"), value);
}

/* ulimit -v limits the address space, whose pages the first number in /proc/self/statm counts. */
static void limit_by_address_space(struct memory_left *left)
{
    struct rlimit limit;
    char text[128];
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return;
    uint64_t used = 0;
    if (file_read_start("/proc/self/statm", text, sizeof text))
        used = strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    keep_less(limit.rlim_cur, used, left);
}

void cpu_memory(uint64_t *ret_total, uint64_t *ret_free)
{
    struct memory_left left = {0, 0};
    char text[16384];
    if (file_read_start("/proc/meminfo", text, sizeof text)) {
        const char *all = strstr(text, "MemTotal:"), *available = strstr(text, "MemAvailable:");
        left.total = all ? strtoull(all + 9, NULL, 10) * 1024 : 0;
        left.free = available ? strtoull(available + 13, NULL, 10) * 1024 : 0;
    }
    struct sysinfo
        info; /* used if /proc is missing; sysinfo() does not count cached pages as free */
    if (left.total == 0 && sysinfo(&info) == 0) {
        left.total = (uint64_t)info.totalram * info.mem_unit;
        left.free = ((uint64_t)info.freeram + info.bufferram) * info.mem_unit;
    }
    if (file_read_start("/proc/self/cgroup", text, sizeof text))
        cpu_cgroup_memory(CGROUP_ROOT, text, &left.total, &left.free);
    limit_by_address_space(&left);
    *ret_total = left.total;
    *ret_free = left.free;
}
