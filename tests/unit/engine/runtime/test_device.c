/* Devices: cgroup quotas, the names that users write, errors about devices that are not there. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/cpu.h"
#include "engine/tensor/device.h"
#include "engine/tensor/tensor.h"

static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0755);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    cr_assert_not_null(file, "%s", full);
    fputs(text, file);
    fclose(file);
}

Test(cpu, quota_follows_cgroup_v2_and_its_parents)
{
    char root[] = "/tmp/lensd-cgroup-XXXXXX";
    cr_assert_not_null(mkdtemp(root));
    write_file(root, "cpu.max", "max 100000\n");
    write_file(root, "a/cpu.max", "150000 100000\n");
    write_file(root, "a/b/cpu.max", "max 100000\n");
    write_file(root, "c/cpu.max", "400000 100000\n");
    cr_expect_float_eq(cpu_cgroup_quota(root, "0::/a/b\n"), 1.5, 1e-9);
    cr_expect_float_eq(cpu_cgroup_quota(root, "0::/c\n"), 4, 1e-9);
    cr_expect_float_eq(cpu_cgroup_quota(root, "0::/\n"), 0, 1e-9);
    cr_expect_float_eq(cpu_cgroup_quota(root, "0::/not/there\n"), 0, 1e-9);
    cr_expect_float_eq(cpu_cgroup_quota(root, "rubbish"), 0, 1e-9);
}

Test(cpu, quota_follows_cgroup_v1)
{
    char root[] = "/tmp/lensd-cgroup-XXXXXX";
    cr_assert_not_null(mkdtemp(root));
    write_file(root, "cpu,cpuacct/box/cpu.cfs_quota_us", "50000\n");
    write_file(root, "cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
    write_file(root, "cpu,cpuacct/free/cpu.cfs_quota_us", "-1\n");
    write_file(root, "cpu,cpuacct/free/cpu.cfs_period_us", "100000\n");
    cr_expect_float_eq(cpu_cgroup_quota(root, "7:memory:/box\n4:cpu,cpuacct:/box\n"), 0.5, 1e-9);
    cr_expect_float_eq(cpu_cgroup_quota(root, "4:cpu,cpuacct:/free\n"), 0, 1e-9);
}

static void expect_memory(const char *root, const char *groups, uint64_t total, uint64_t left)
{
    uint64_t got_total = 1000, got_left = 900; /* the host's */
    cpu_cgroup_memory(root, groups, &got_total, &got_left);
    cr_expect(got_total == total && got_left == left, "%s: %llu and %llu", groups,
              (unsigned long long)got_total, (unsigned long long)got_left);
}

Test(cpu, memory_follows_cgroup_v2_and_its_parents)
{
    char root[] = "/tmp/lensd-cgroup-XXXXXX";
    cr_assert_not_null(mkdtemp(root));
    write_file(root, "a/memory.max", "400\n");
    write_file(root, "a/memory.current", "350\n");
    write_file(root, "a/memory.stat", "anon 100\ninactive_file 200\nactive_file 50\n");
    write_file(root, "a/b/memory.max", "max\n");
    write_file(root, "a/b/memory.current", "10\n");
    write_file(root, "a/b/c/memory.max", "300\n");
    write_file(root, "a/b/c/memory.current", "310\n");
    expect_memory(root, "0::/a/b\n", 400, 300);
    expect_memory(root, "0::/a/b/c\n", 300, 0);
    expect_memory(root, "0::/\n", 1000, 900);
    expect_memory(root, "0::/not/there\n", 1000, 900);
    expect_memory(root, "rubbish", 1000, 900);
}

Test(cpu, memory_follows_cgroup_v1)
{
    char root[] = "/tmp/lensd-cgroup-XXXXXX";
    cr_assert_not_null(mkdtemp(root));
    write_file(root, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file(root, "memory/memory.usage_in_bytes", "800\n");
    write_file(root, "memory/box/memory.limit_in_bytes", "500\n");
    write_file(root, "memory/box/memory.usage_in_bytes", "100\n");
    write_file(root, "memory/box/in/memory.limit_in_bytes", "700\n");
    expect_memory(root, "9:cpu:/\n7:memory:/box/in\n", 500, 400);
    expect_memory(root, "7:memory:/\n", 1000, 900);
}

/* A sanitizer's own memory does not fit. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
Test(cpu, memory_follows_ulimit_v)
{
    uint64_t total, left, limited, limited_left;
    struct rlimit before, after;
    cpu_memory(&total, &left);
    cr_assert_eq(getrlimit(RLIMIT_AS, &before), 0);
    const struct rlimit limit = {total / 2, before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    cr_assert_eq(getrlimit(RLIMIT_AS, &after), 0);
    if (after.rlim_cur != limit.rlim_cur)
        cr_skip("qemu-user ignores limits of the address space");
    cpu_memory(&limited, &limited_left);
    cr_assert_eq(setrlimit(RLIMIT_AS, &before), 0);
    cr_expect_eq(limited, total / 2);
    cr_expect_lt(limited_left, total / 2);
}
#endif

Test(cpu, cores_are_never_more_than_the_affinity_mask)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        cr_skip("the affinity mask cannot be set here");
    cr_expect_eq(cpu_available_cores(), 1); /* each Criterion test is a process of its own */
}

static enum status parse(const char *text, size_t *count, struct device_id *first,
                         struct error *err)
{
    struct device_id devices[DEVICE_MAX];
    char fallback[256];
    enum status status = device_parse(text, devices, count, fallback, sizeof fallback, err);
    if (status == STATUS_OK)
        *first = devices[0];
    return status;
}

Test(device, parses_what_users_write)
{
    struct error err = {0};
    struct device_id first;
    size_t count = 0;
    cr_assert_eq(parse("cpu", &count, &first, &err), STATUS_OK);
    cr_assert_eq(count, 1);
    cr_assert_eq(first.kind, DEVICE_CPU);
    cr_assert_eq(parse("cpu,cpu", &count, &first, &err), STATUS_OK);
    cr_assert_eq(count, 2);
    cr_assert_eq(parse("auto", &count, &first, &err), STATUS_OK);
    cr_assert_eq(count, 1);
    cr_assert_eq(parse("all", &count, &first, &err), STATUS_OK);
    cr_assert_geq(count, 1);
}

Test(device, says_what_is_wrong_and_what_there_is)
{
    static const struct {
        const char *text;
        enum status status;
        const char *contains;
    } cases[] = {
        {"mps", STATUS_CONFIG,
         "no MPS (Apple Metal) backend; the devices of this machine are: cpu"},
        {"cuda:999", STATUS_DEVICE, "device 'cuda:999' is not available"},
        {"gpu", STATUS_CONFIG, "unknown device 'gpu'; use auto, cpu, cuda"},
        {"", STATUS_CONFIG, "unknown device ''"},
        {"cpu,", STATUS_CONFIG, "unknown device ''"},
        {"cuda:x", STATUS_CONFIG, "expected cuda:N"},
        {"cuda:-1", STATUS_CONFIG, "expected cuda:N"},
        {"cuda:99999999999999999999", STATUS_CONFIG, "expected cuda:N"},
        {"cuda:1024", STATUS_CONFIG, "a number from 0 to 1023"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err = {0};
        struct device_id first;
        size_t count;
        cr_expect_eq(parse(cases[i].text, &count, &first, &err), cases[i].status, "%s",
                     cases[i].text);
        cr_expect(strstr(err.message, cases[i].contains), "'%s': %s", cases[i].text, err.message);
    }
}

Test(device, explicit_cuda_is_an_error_where_there_is_none)
{
    struct device_info devices[DEVICE_MAX];
    size_t known = device_list(devices, DEVICE_MAX), count;
    for (size_t i = 0; i < known; i++)
        if (devices[i].id.kind == DEVICE_CUDA && devices[i].usable)
            cr_skip("this machine has a GPU");
    struct error err = {0};
    struct device_id first;
    cr_assert_eq(parse("cuda", &count, &first, &err), STATUS_DEVICE);
    cr_assert(strstr(err.message, "--device auto"), "%s", err.message);
    char fallback[256];
    struct device_id list[DEVICE_MAX];
    cr_assert_eq(device_parse("auto", list, &count, fallback, sizeof fallback, &err), STATUS_OK);
    cr_assert_eq(list[0].kind, DEVICE_CPU);
    /* a GPU that is there but cannot be used is worth a sentence; none at all is not */
    cr_assert_eq(strstr(fallback, "serving on the CPU") != NULL, known > 1 && devices[1].present,
                 "%s", fallback);
}
