/* Files that the daemon may open after its start: Landlock.
 *
 *     read           the model's folder; --models; the folders of the files of --api-keys,
 *                    --admin-key-file, --tls-cert and --tls-key; libraries (/usr, /lib and the
 *                    folders of loaded ones); /proc, /sys/devices/system and /sys/fs/cgroup for
 *                    cores, memory and metrics; files in /etc that libc reads for --host and
 *                    --user; with --trace-endpoint, certificates
 *     read, write    the cache folder; the folders of --port-file and --pid-file, because these
 *                    files are removed at the end; the folders of --unix and of an ipc:// address
 *                    in --zmq-port, only to make and remove sockets;
 *                    the folder of --faces, for the file and its journal;
 *                    with --core-dumps the folder of core dumps, unless it is the root
 *     execute        nothing
 *     connect, bind  TCP (ABI 4): bind only to lensd's own ports, connect only to the port of
 *                    --trace-endpoint; abstract unix sockets of other processes: not allowed,
 *                    unless systemd's NOTIFY_SOCKET is an abstract socket
 *     signal         only its own processes (ABI 6)
 *
 * Rules apply to folders, not to single files, because keys, certificates and models are replaced
 * by renaming a new file over the old one. If a name is a link, the folder of its target is added,
 * because Let's Encrypt replaces certificates there. A file that is read in the root folder gets
 * a rule of its own; a file that is written there makes a rule for the folder. Everything that
 * SIGHUP, --watch and admins read later must lie in these folders: a model's link that leads
 * elsewhere is refused.
 *
 * Open descriptors are not affected: standard error, the listening socket. /proc is allowed as a
 * whole, because a rule for a file in it is lost when the kernel stops caching the file. Landlock
 * forbids tracing, and so access to the memory of other processes. Root's capabilities
 * (CAP_PERFMON, Linux 6.13) can still read the environment of other processes, so root gives up
 * all capabilities that the start does not need.
 *
 * With the CUDA module loaded, these are added: NVIDIA's device files, /dev/shm, /sys, the folders
 * of LD_LIBRARY_PATH, and the cache of compiled kernels, if it exists. Threads that the driver
 * started earlier are not restricted.
 *
 * libc has no functions for the three system calls, and older headers lack the later bits. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/backend/cuda_module.h"
#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "models/folder/pipeline_config.h"
#include "server/app/confine.h"
#include "server/observe/trace_exporter.h"

#define BIT(n) (UINT64_C(1) << (n))

/* Source: linux/landlock.h of Linux 6.12. Bits of handled_access_fs: */
#define READ_FILE   BIT(2)
#define READ_DIR    BIT(3)
#define WRITE_FILE  BIT(1)
#define REMOVE_DIR  BIT(4)
#define REMOVE_FILE BIT(5)
#define MAKE_DIR    BIT(7)
#define MAKE_REG    BIT(8)
#define MAKE_SOCK   BIT(9)
#define TRUNCATE    BIT(14) /* ABI 3 */
#define IOCTL_DEV   BIT(15) /* ABI 5 */

#define READ      (READ_FILE | READ_DIR)
#define CHANGE    (READ | WRITE_FILE | TRUNCATE)
#define MAKE      (CHANGE | MAKE_REG | REMOVE_FILE)
#define OF_A_FILE (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV)

/* BIND_TCP, CONNECT_TCP: bits of handled_access_net and of rules for ports. ABSTRACT_SOCKET,
 * SIGNALS: bits of `scoped` in struct landlock_ruleset_attr. */
#define BIND_TCP        BIT(0)
#define CONNECT_TCP     BIT(1)
#define ABSTRACT_SOCKET BIT(0)
#define SIGNALS         BIT(1)

/* struct landlock_ruleset_attr of ABI 6; fields that an older kernel does not know must be 0. */
struct handled_access {
    uint64_t files, net, scoped;
};

struct port_rule {
    uint64_t access, port;
};

struct file_rules {
    int fd; /* descriptor of the ruleset */
    uint64_t handled;
    int cause; /* errno of the first rule that the kernel has refused; 0: none */
};

/* ---- rules ---- */

/* Allows `access` to a file, or to a folder and everything in it. Ignores a missing file. */
static void allow(struct file_rules *rules, const char *path, uint64_t access)
{
    struct stat info;
    const int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &info) == 0 && !S_ISDIR(info.st_mode))
        access &= OF_A_FILE;
    struct landlock_path_beneath_attr rule = {.allowed_access = access & rules->handled,
                                              .parent_fd = fd};
    if (syscall(SYS_landlock_add_rule, rules->fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0 &&
        !rules->cause)
        rules->cause = errno;
    close(fd);
}

/* Allows reading the folder of the file `path`. If `path` is a link, also allows the folder of its
 * target. Does nothing if `path` is NULL. */
static void allow_beside(struct file_rules *rules, const char *path)
{
    char folder[PATH_MAX], real[PATH_MAX];
    const char *const names[] = {path, path && realpath(path, real) ? real : NULL};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!names[i])
            continue;
        path_folder(names[i], folder);
        allow(rules, strcmp(folder, "/") != 0 ? folder : names[i], READ);
    }
}

/* Allows reading a folder. If `path` is a link, also allows the folder that contains the link's
 * target, because a later target of the link may be there. */
static void allow_folder(struct file_rules *rules, const char *path)
{
    char real[PATH_MAX];
    struct stat info;
    allow(rules, path, READ);
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode) && realpath(path, real))
        allow_beside(rules, real);
}

/* For the folder MODEL/snapshots or MODEL/snapshots/REVISION of Hugging Face's cache, allows
 * MODEL/blobs, where the links in REVISION lead. */
static void allow_blobs(struct file_rules *rules, const char *folder)
{
    char path[PATH_MAX], blobs[PATH_MAX + 8];
    if (!realpath(folder, path))
        return;
    for (int levels = 0; levels < 2; levels++) {
        char *slash = strrchr(path, '/');
        *slash = '\0';
        if (strcmp(slash + 1, "snapshots") == 0) {
            snprintf(blobs, sizeof blobs, "%s/blobs", path);
            allow(rules, blobs, READ);
            return;
        }
        if (slash == path)
            return;
    }
}

/* Allows the stages of a pipeline, which lie in folders next to it. */
static void allow_stages(struct file_rules *rules, const char *folder)
{
    struct pipeline_config stages;
    if (pipeline_config_read(folder, &stages, NULL) != STATUS_OK)
        return;
    for (size_t i = 0; i < stages.stage_count; i++) {
        char *path = pipeline_stage_path(folder, &stages.stages[i]);
        if (path)
            allow_folder(rules, path);
        free(path);
    }
}

static void allow_models(struct file_rules *rules, const struct config *config)
{
    char folder[PATH_MAX];
    const char *path = config->loader.models ? config->loader.models : config->model;
    if (!path)
        return;
    if (config->loader.models || path_is_folder(path)) {
        allow_folder(rules, path);
        allow_blobs(rules, path);
        if (!config->loader.models)
            allow_stages(rules, path);
        return;
    }
    allow_beside(rules, path);
    path_folder(path, folder);
    allow_blobs(rules, folder);
}

/* Allows `access` to the folder of a file that lensd creates. Does nothing if `path` is NULL. */
static void allow_made(struct file_rules *rules, const char *path, uint64_t access)
{
    char folder[PATH_MAX];
    if (!path)
        return;
    path_folder(path, folder);
    allow(rules, folder, access);
}

/* Allows the folder of core dumps, because the kernel writes a core dump with the rights of the
 * process. Not needed if core_pattern names a program. */
static void allow_core_dumps(struct file_rules *rules)
{
    char pattern[PATH_MAX] = "|", folder[PATH_MAX], real[PATH_MAX];
    if (file_read_start("/proc/sys/kernel/core_pattern", pattern, sizeof pattern) &&
        pattern[0] != '|') {
        path_folder(pattern, folder);
        if (realpath(folder, real) && strcmp(real, "/") != 0)
            allow(rules, real, WRITE_FILE | TRUNCATE | MAKE_REG | REMOVE_FILE);
    }
}

static int allow_library(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    if (info->dlpi_name && info->dlpi_name[0] == '/')
        allow_beside(context, info->dlpi_name);
    return 0;
}

static void allow_system(struct file_rules *rules)
{
    static const char *const paths[] = {
        /* libraries */
        "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/gnutls", "/etc/crypto-policies",
        /* to read cores, memory and metrics */
        "/proc", "/sys/devices/system", "/sys/fs/cgroup",
        /* to look up the names in --user and --host */
        "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/host.conf",
        "/etc/resolv.conf", "/etc/gai.conf"};
    for (size_t i = 0; i < COUNT_OF(paths); i++)
        allow(rules, paths[i], READ);
#ifdef COVERAGE_FOLDER
    allow(rules, COVERAGE_FOLDER, CHANGE | MAKE_REG);
#endif
    (void)dl_iterate_phdr(allow_library, rules);
    /* NVIDIA's management library is loaded later, for metrics. */
    char *folders = strdup(getenv("LD_LIBRARY_PATH") ? getenv("LD_LIBRARY_PATH") : "");
    char *rest = folders;
    for (const char *folder; rest && (folder = strsep(&rest, ":"));)
        if (folder[0])
            allow(rules, folder, READ);
    free(folders);
}

/* ---- CUDA ---- */

static void allow_gpus(struct file_rules *rules)
{
    char path[PATH_MAX];
    glob_t devices = {0};
    (void)glob("/dev/{nvidia,nvhost,nvmap,nvgpu,dxg,shm}*", GLOB_BRACE, NULL, &devices);
    for (size_t i = 0; i < devices.gl_pathc; i++)
        allow(rules, devices.gl_pathv[i], MAKE | IOCTL_DEV);
    globfree(&devices);
    allow(rules, "/sys", READ);
    const char *kernels = getenv("CUDA_CACHE_PATH"), *home = getenv("HOME");
    if (kernels && kernels[0])
        snprintf(path, sizeof path, "%s", kernels);
    else
        snprintf(path, sizeof path, "%s/.nv", home ? home : "");
    allow(rules, path, MAKE | MAKE_DIR | REMOVE_DIR);
}

/* ---- capabilities ---- */

#define RIGHT(name) (UINT64_C(1) << CAP_##name)

/* The capabilities for files of other users, for --user and the owner of its files, for ports below
 * 1024, and for CUDA's locked memory. */
static const uint64_t kept_rights = RIGHT(DAC_OVERRIDE) | RIGHT(DAC_READ_SEARCH) | RIGHT(FOWNER) |
                                    RIGHT(CHOWN) | RIGHT(SETUID) | RIGHT(SETGID) |
                                    RIGHT(NET_BIND_SERVICE) | RIGHT(IPC_LOCK);

/* Keeps only kept_rights of the calling thread's capabilities. Returns 0 or errno. */
static int drop_rights(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct halves[_LINUX_CAPABILITY_U32S_3];
    bool drops = false;
    if (syscall(SYS_capget, &header, halves) != 0)
        return errno;
    for (size_t i = 0; i < COUNT_OF(halves); i++) {
        const uint32_t kept = (uint32_t)(kept_rights >> (32 * i));
        drops |= ((halves[i].permitted | halves[i].inheritable) & ~kept) != 0;
        halves[i].effective &= kept;
        halves[i].permitted &= kept;
        halves[i].inheritable &= kept;
    }
    return drops && syscall(SYS_capset, &header, halves) != 0 ? errno : 0;
}

/* ---- the ruleset ---- */

/* Returns the kinds of access that a kernel with this ABI can forbid. Landlock forbids these kinds
 * unless a rule allows the access. Leaves out abstract sockets if NOTIFY_SOCKET is one. */
static struct handled_access access_of(int abi)
{
    const char *notify = getenv("NOTIFY_SOCKET");
    struct handled_access handled = {.files = BIT(13) - 1};
    if (abi >= 2)
        handled.files |= BIT(13); /* LANDLOCK_ACCESS_FS_REFER */
    if (abi >= 3)
        handled.files |= TRUNCATE;
    if (abi >= 4)
        handled.net = BIND_TCP | CONNECT_TCP;
    if (abi >= 5)
        handled.files |= IOCTL_DEV;
    if (abi >= 6)
        handled.scoped = notify && notify[0] == '@' ? SIGNALS : SIGNALS | ABSTRACT_SOCKET;
    return handled;
}

static void allow_port(struct file_rules *rules, uint64_t access, int64_t port)
{
    enum { RULE_NET_PORT = 2 };
    struct port_rule rule = {access, (uint64_t)port};
    if (syscall(SYS_landlock_add_rule, rules->fd, RULE_NET_PORT, &rule, 0) != 0 && !rules->cause)
        rules->cause = errno;
}

/* Allows connecting to the collector. Ignores a malformed address; the exporter refuses it. */
static void allow_collector(struct file_rules *rules, const char *endpoint, bool has_ports)
{
    int port;
    struct error err;
    allow(rules, "/etc/ssl", READ);
    allow_beside(rules, getenv(TRACE_CERTIFICATE));
    if (has_ports && trace_endpoint_port(endpoint, &port, &err) == STATUS_OK)
        allow_port(rules, CONNECT_TCP, port);
}

/* Allows binding to --zmq-port. Ignores a malformed endpoint; ZeroMQ refuses it. */
static void allow_zmq(struct file_rules *rules, const char *endpoint, bool has_ports)
{
    const char *colon = strrchr(endpoint, ':');
    const long port = strtol(colon ? colon + 1 : endpoint, NULL, 10);
    if (!strncmp(endpoint, "ipc://", 6))
        allow_made(rules, endpoint + 6, MAKE_SOCK | REMOVE_FILE);
    else if (has_ports && port >= 0 && port <= UINT16_MAX)
        allow_port(rules, BIND_TCP, port);
}

/* Returns 0, or errno after a failure; nothing is then restricted. */
static int restrict_files(const struct config *config, int abi, bool is_wide)
{
    const struct handled_access handled = access_of(abi);
    struct file_rules rules = {
        .fd = (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0),
        .handled = handled.files};
    if (rules.fd < 0)
        return errno;
    allow_system(&rules);
    allow_models(&rules, config);
    allow_beside(&rules, config->http.keys.keys_file);
    allow_beside(&rules, config->http.keys.admin_file);
    allow_beside(&rules, config->http.tls_cert);
    allow_beside(&rules, config->http.tls_key);
    if (config->cache_folder)
        allow(&rules, config->cache_folder, MAKE | MAKE_DIR | REMOVE_DIR);
    allow_made(&rules, config->port_file, MAKE);
    allow_made(&rules, config->pid_file, MAKE);
    allow_made(&rules, config->faces, MAKE);
    allow_made(&rules, config->http.unix_path, MAKE_SOCK | REMOVE_FILE);
    if (config->core_dumps)
        allow_core_dumps(&rules);
    if (is_wide)
        allow_gpus(&rules);
    if (handled.net && !config->http.unix_path)
        allow_port(&rules, BIND_TCP, config->http.port);
    if (handled.net && config->http.admin_port)
        allow_port(&rules, BIND_TCP, config->http.admin_port);
    if (handled.net && config->http.grpc_port)
        allow_port(&rules, BIND_TCP, config->http.grpc_port);
    if (config->http.zmq_port)
        allow_zmq(&rules, config->http.zmq_port, handled.net != 0);
    if (config->trace_endpoint)
        allow_collector(&rules, config->trace_endpoint, handled.net != 0);
    if (!rules.cause && syscall(SYS_landlock_restrict_self, rules.fd, 0) != 0)
        rules.cause = errno;
    close(rules.fd);
    return rules.cause;
}

void confine_files(const struct config *config, struct confinement *ret)
{
    *ret = (struct confinement){.is_wide = cuda_module(NULL) != NULL};
    tzset(); /* reads the time zone for the log */
    const long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    const int cause = abi < 0 ? errno : restrict_files(config, (int)abi, ret->is_wide);
    if (cause)
        snprintf(ret->missing, sizeof ret->missing, "no Landlock: %s", strerror(cause));
    else
        ret->landlock = (int)abi;
    const int kept = drop_rights();
    if (kept)
        text_append(ret->missing, sizeof ret->missing, "; ",
                    "the capabilities of root are kept: %s", strerror(kept));
}
