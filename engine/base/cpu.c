/* Reads what the process may use of the host: cores from the affinity mask and the cgroup quota,
 * instruction sets from CPUID, memory from /proc/meminfo and the cgroup. */
#include "engine/base/cpu.h"

#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#define CGROUP_ROOT "/sys/fs/cgroup"

/* Reads a small file as a whole; false when it is not there. */
static bool read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t n = fread(text, 1, size - 1, file);
    text[n] = '\0';
    fclose(file);
    return n > 0;
}

/* cgroup v2's cpu.max: "150000 100000" or "max 100000". */
static double quota_v2(const char *folder)
{
    char path[4352], text[64];
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (!read_text(path, text, sizeof text) || !strncmp(text, "max", 3))
        return 0;
    char *end;
    double quota = strtod(text, &end), period = strtod(end, NULL);
    return quota > 0 && period > 0 ? quota / period : 0;
}

static double quota_v1(const char *folder)
{
    char path[4352], text[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_text(path, text, sizeof text))
        return 0;
    double quota = strtod(text, NULL);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (quota <= 0 || !read_text(path, text, sizeof text))
        return 0;
    double period = strtod(text, NULL);
    return period > 0 ? quota / period : 0;
}

/* The smallest quota from `group` up to the root: a parent's limit binds its children too. */
static double quota_along(const char *root, const char *group, double (*read)(const char *folder))
{
    char folder[4096];
    double smallest = 0;
    int n = snprintf(folder, sizeof folder, "%s%s", root, strcmp(group, "/") ? group : "");
    if (n < 0 || (size_t)n >= sizeof folder)
        return 0;
    size_t root_length = strlen(root);
    for (;;) {
        double quota = read(folder);
        if (quota > 0 && (smallest == 0 || quota < smallest))
            smallest = quota;
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < root_length)
            return smallest;
        *slash = '\0';
    }
}

double cpu_cgroup_quota(const char *root, const char *proc_cgroup)
{
    /* Lines are "hierarchy:controllers:path"; v2 is "0::path", v1 names its controllers. */
    double smallest = 0;
    const char *line = proc_cgroup;
    while (line && *line) {
        size_t length = strcspn(line, "\n");
        char text[4096];
        snprintf(text, sizeof text, "%.*s", (int)(length < 4000 ? length : 4000), line);
        line = line[length] ? line + length + 1 : NULL;
        char *controllers = strchr(text, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        double quota = 0;
        if (!*controllers) {
            quota = quota_along(root, group, quota_v2);
        } else if (strstr(controllers, "cpu") && strcmp(controllers, "cpuset") != 0) {
            static const char *const mounts[] = {"cpu,cpuacct", "cpu"};
            for (size_t i = 0; i < 2 && quota == 0; i++) {
                char base[4096];
                snprintf(base, sizeof base, "%s/%s", root, mounts[i]);
                quota = quota_along(base, group, quota_v1);
                if (quota == 0) /* in a container the group's own path is not visible */
                    quota = quota_v1(base);
            }
        }
        if (quota > 0 && (smallest == 0 || quota < smallest))
            smallest = quota;
    }
    return smallest;
}

static int available_cores;
static struct cpu_features features;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int affinity_cores(void)
{
    /* A host may have more CPUs than cpu_set_t's 1024: grow until the kernel accepts the size. */
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        if (!set)
            return 1;
        int failed = sched_getaffinity(0, size, set);
        int count = failed ? 0 : CPU_COUNT_S(size, set);
        CPU_FREE(set);
        if (!failed)
            return count > 0 ? count : 1;
        if (errno != EINVAL)
            return 1;
    }
    return 1;
}

static uint64_t xgetbv0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static void read_features(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    bool os_saves = c & bit_OSXSAVE;
    bool fma = c & bit_FMA, f16c = c & bit_F16C;
    if (!os_saves || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;
    uint64_t saved = xgetbv0();
    bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6;
    bool tiles = (saved & 0x60000) == 0x60000;
    features.avx2 = ymm && fma && f16c && (b & bit_AVX2);
    features.avx512 =
        zmm && (b & bit_AVX512F) && (b & bit_AVX512BW) && (b & bit_AVX512VL) && (b & bit_AVX512DQ);
    features.avx512_vnni = features.avx512 && (c & 1u << 11);
    features.avx512_vbmi = features.avx512 && (c & 1u << 1);
    features.avx512_fp16 = features.avx512 && (d & 1u << 23);
    features.amx_bf16 = tiles && (d & 1u << 22);
    features.amx_int8 = tiles && (d & 1u << 25);
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        features.avx_vnni = features.avx2 && (a & 1u << 4);
        features.avx512_bf16 = features.avx512 && (a & 1u << 5);
    }
}

static void read_once(void)
{
    char text[16384];
    int cores = affinity_cores();
    if (read_text("/proc/self/cgroup", text, sizeof text)) {
        double quota = cpu_cgroup_quota(CGROUP_ROOT, text);
        if (quota > 0 && quota < cores)
            cores = quota < 1 ? 1 : (int)quota;
    }
    available_cores = cores;
    read_features();
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
    snprintf(text, size, "x86-64 CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += strspn(value, ": \t");
        value[strcspn(value, "\n")] = '\0';
        snprintf(text, size, "%s", value);
        break;
    }
    fclose(file);
}

static uint64_t number_in(const char *path)
{
    char text[64];
    if (!read_text(path, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return 0;
    return strtoull(text, NULL, 10);
}

void cpu_memory(uint64_t *ret_total, uint64_t *ret_free)
{
    uint64_t total = 0, available = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "MemTotal:", 9))
            total = strtoull(line + 9, NULL, 10) * 1024;
        if (!strncmp(line, "MemAvailable:", 13))
            available = strtoull(line + 13, NULL, 10) * 1024;
    }
    if (file)
        fclose(file);
    struct sysinfo info; /* without /proc; it counts no caches as free */
    if (total == 0 && sysinfo(&info) == 0) {
        total = (uint64_t)info.totalram * info.mem_unit;
        available = ((uint64_t)info.freeram + info.bufferram) * info.mem_unit;
    }
    /* Inside a container its own group is the root of the tree it sees. */
    static const char *const files[2][2] = {
        {CGROUP_ROOT "/memory.max", CGROUP_ROOT "/memory.current"},
        {CGROUP_ROOT "/memory/memory.limit_in_bytes", CGROUP_ROOT "/memory/memory.usage_in_bytes"},
    };
    for (size_t i = 0; i < 2; i++) {
        uint64_t limit = number_in(files[i][0]), used = number_in(files[i][1]);
        if (!limit || limit >= total)
            continue;
        total = limit;
        if (used <= limit && limit - used < available)
            available = limit - used;
    }
    *ret_total = total;
    *ret_free = available;
}
