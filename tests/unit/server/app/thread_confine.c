/* The daemon's confinement (server/app/confine.h): what is refused, and what still works. Each test
 * confines a child process. A plain program, so that it also runs under ThreadSanitizer. */
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "server/app/confine.h"
#include "tests/unit/server/app/forbidden_calls.h"
#include "tests/unit/tap.h"

static pid_t start_child(void (*run)(void))
{
    fflush(stdout); /* ThreadSanitizer's _exit() writes it */
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        run();
        _exit(0);
    }
    return child;
}

static void end_child(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void in_child(void (*run)(void))
{
    end_child(start_child(run));
}

/* ---- system calls ---- */

static bool is_refused(size_t i)
{
    const long *a = forbidden[i].arguments;
    errno = 0;
    return syscall(forbidden[i].number, a[0], a[1], a[2], a[3], a[4]) == -1 && errno == EPERM;
}

static bool was_refused[COUNT_OF(forbidden)]; /* before, for want of rights: proves nothing */

static void check_forbidden(bool is_wide)
{
    size_t proven = 0;
    for (size_t i = 0; i < COUNT_OF(forbidden); i++) {
        if (is_wide && forbidden[i].is_open_for_cuda)
            continue;
        if (!is_refused(i))
            fprintf(stderr, "%s is not refused\n", forbidden[i].name);
        CHECK(is_refused(i));
        proven += !was_refused[i];
    }
    CHECK(proven > 12);
    /* libc has to fall back to clone, whose flags the filter sees. */
    CHECK(syscall(SYS_clone3, NULL, 0) == -1 && errno == ENOSYS);
}

static void try_all(void)
{
    for (size_t i = 0; i < COUNT_OF(forbidden); i++)
        was_refused[i] = is_refused(i);
}

static void confine_now(bool is_wide)
{
    struct confinement confinement = {.is_wide = is_wide};
    confine_calls(&(struct config){0}, &confinement);
    CHECK(confinement.seccomp && !confinement.missing[0]);
    CHECK(!strcmp(confinement.text, is_wide ? "seccomp (wider, for CUDA)" : "seccomp"));
}

static void *run_checks(void *is_wide)
{
    check_forbidden(*(bool *)is_wide);
    return NULL;
}

static pthread_barrier_t barrier;

static void *run_checks_later(void *is_wide)
{
    pthread_barrier_wait(&barrier);
    return run_checks(is_wide);
}

/* In threads that were there and in new ones; both can still be made. */
static void check_threads(bool is_wide)
{
    pthread_t before, after;
    try_all();
    CHECK(!pthread_barrier_init(&barrier, NULL, 2));
    CHECK(!pthread_create(&before, NULL, run_checks_later, &is_wide));
    confine_now(is_wide);
    pthread_barrier_wait(&barrier);
    CHECK(!pthread_join(before, NULL));
    CHECK(!pthread_create(&after, NULL, run_checks, &is_wide));
    CHECK(!pthread_join(after, NULL));
    check_forbidden(is_wide);
}

static void check_cpu(void)
{
    check_threads(false);
}

static void check_wide(void)
{
    check_threads(true);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    close(fd);
}

static void test_calls_are_refused_in_all_threads(void)
{
    in_child(check_cpu);
}

static void test_calls_are_refused_where_cuda_is_in_use(void)
{
    in_child(check_wide);
}

/* Executable memory, which loaders need for libraries and PCRE2's code. */
static bool can_make_code(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    const bool can = mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0;
    CHECK(!munmap(page, 4096));
    return can;
}

/* A thread that libheif's decoders make: confined as its maker. */
static void *helper_of_decoder(void *context)
{
    (void)context;
    CHECK(open("/proc/self/stat", O_RDONLY | O_CLOEXEC) == -1 && errno == EPERM);
    CHECK(!can_make_code() && errno == EPERM);
    return NULL;
}

static void *decode(void *context)
{
    const struct iovec last_words = {.iov_base = (char[]){"x"}, .iov_len = 1};
    char *bytes;
    confine_decode_worker();
    CHECK(open("/proc/self/stat", O_RDONLY | O_CLOEXEC) == -1 && errno == EPERM);
    CHECK(read(-1, context, 1) == -1 && errno == EPERM);
    CHECK(send(-1, context, 1, 0) == -1 && errno == EPERM);
    CHECK(unlink("/nowhere/at/all") == -1 && errno == EPERM);
    CHECK(!can_make_code() && errno == EPERM);
    CHECK(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == -1 && errno == EPERM);
    pthread_t helper;
    CHECK(!pthread_create(&helper, NULL, helper_of_decoder, NULL));
    CHECK(!pthread_join(helper, NULL));
    for (size_t size = 1; size < (size_t)64 << 20; size *= 3) {
        bytes = malloc(size);
        CHECK(bytes);
        memset(bytes, 1, size);
        free(bytes);
    }
    CHECK(write(*(int *)context, "x", 1) == 1);
    CHECK(writev(*(int *)context, &last_words, 1) == 1); /* as libc does before it aborts */
    return NULL;
}

static void check_decode_worker(void)
{
    pthread_t worker;
    int ends[2];
    char byte;
    CHECK(!pipe2(ends, O_CLOEXEC));
    confine_now(false);
    CHECK(!pthread_create(&worker, NULL, decode, &ends[1]));
    CHECK(!pthread_join(worker, NULL));
    CHECK(read(ends[0], &byte, 1) == 1);
    CHECK(can_make_code());
}

static void test_decode_workers_have_a_stricter_filter(void)
{
    in_child(check_decode_worker);
}

/* ---- files ---- */

/* folder/{model/{model.onnx,outside},other/secret,keys/keys,cache/,run/}: "outside" is a link. */
static char folder[PATH_MAX];

static const char *at(const char *name)
{
    static char paths[4][2 * PATH_MAX];
    static unsigned turn;
    char *path = paths[turn++ % COUNT_OF(paths)];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static bool can_write(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const bool can = fd >= 0 && write(fd, "x", 1) == 1;
    const int cause = errno;
    if (fd >= 0)
        close(fd);
    errno = cause;
    return can;
}

static bool can_read(const char *path)
{
    char byte;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool can = fd >= 0 && read(fd, &byte, 1) == 1;
    const int cause = errno;
    if (fd >= 0)
        close(fd);
    errno = cause;
    return can;
}

static void make_folders(void)
{
    static const char *const folders[] = {"model", "other", "keys", "cache", "run"};
    snprintf(folder, sizeof folder, "/tmp/lensd-confine-XXXXXX");
    CHECK(mkdtemp(folder));
    for (size_t i = 0; i < COUNT_OF(folders); i++)
        CHECK(!mkdir(at(folders[i]), 0700));
    CHECK(can_write(at("model/model.onnx")) && can_write(at("other/secret")));
    CHECK(can_write(at("keys/keys")));
    CHECK(!symlink(at("other/secret"), at("model/outside")));
}

static void remove_folders(void)
{
    static const char *const files[] = {
        "model/outside", "model/model.onnx", "other/secret", "other/link",
        "keys/keys",     "run/port",         "cache/new",    "cache"};
    static const char *const folders[] = {"cache", "model", "other", "keys", "run", ""};
    for (size_t i = 0; i < COUNT_OF(files); i++)
        (void)unlink(at(files[i]));
    for (size_t i = 0; i < COUNT_OF(folders); i++)
        CHECK(!rmdir(at(folders[i])));
}

static void confine_folders(const char *model)
{
    char texts[5][2 * PATH_MAX];
    static const char *const names[] = {"cache", "run/port", "keys/keys"};
    struct confinement confinement;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        snprintf(texts[i], sizeof texts[i], "%s", at(names[i]));
    snprintf(texts[3], sizeof texts[3], "%s", at(model));
    const struct config config = {.cache_folder = texts[0],
                                  .port_file = texts[1],
                                  .http.keys.keys_file = texts[2],
                                  .model = texts[3]};
    confine_files(&config, &confinement);
    CHECK(confinement.landlock > 0 && !confinement.missing[0]);
}

static void check_reading(void)
{
    confine_folders("model");
    CHECK(can_read(at("model/model.onnx")));
    CHECK(can_read(at("keys/keys")));
    CHECK(can_read("/proc/self/stat") && can_read("/proc/meminfo"));
    CHECK(!can_read(at("other/secret")) && errno == EACCES);
    CHECK(!can_read(at("model/outside")) && errno == EACCES);
    CHECK(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) == -1 && errno == EACCES);
    CHECK(open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC) == -1 && errno == EACCES);
}

static void check_writing(void)
{
    confine_folders("model");
    CHECK(can_write(at("cache/new")));
    CHECK(!mkdir(at("cache/deeper"), 0700) && !rmdir(at("cache/deeper")));
    CHECK(can_write(at("run/port.new")));
    CHECK(!rename(at("run/port.new"), at("run/port")));
    CHECK(!unlink(at("run/port")));
    CHECK(!can_write(at("model/model.onnx")) && errno == EACCES);
    CHECK(!can_write(at("model/new")) && errno == EACCES);
    CHECK(!can_write(at("keys/keys")) && errno == EACCES);
    CHECK(!can_write(at("other/secret")) && errno == EACCES);
    CHECK(unlink(at("model/model.onnx")) == -1 && errno == EACCES);
    CHECK(unlink(at("other/secret")) == -1 && errno == EACCES);
    CHECK(mkdir(at("other/new"), 0700) == -1 && errno == EACCES);
    CHECK(rename(at("cache/new"), at("model/new")) == -1);
    CHECK(symlink(at("other/secret"), at("cache/link")) == -1 && errno == EACCES);
    CHECK(truncate(at("other/secret"), 0) == -1 && errno == EACCES);
}

static void check_running(void)
{
    char *const arguments[] = {NULL};
    confine_folders("model");
    CHECK(execve("/bin/false", arguments, arguments) == -1 && errno == EACCES);
}

/* Keys are replaced by renaming a new file over the old one. */
static void replace_keys(void)
{
    CHECK(!unlink(at("keys/keys")));
    CHECK(can_write(at("keys/new")));
    CHECK(!rename(at("keys/new"), at("keys/keys")));
}

static int to_child[2], to_parent[2];

static void check_replaced(void)
{
    char byte = 'x';
    confine_folders("model");
    CHECK(write(to_parent[1], &byte, 1) == 1 && read(to_child[0], &byte, 1) == 1);
    CHECK(can_read(at("keys/keys")));
}

/* A model may be named through a link. */
static void check_links(void)
{
    confine_folders("other/link");
    CHECK(can_read(at("other/link")) && can_read(at("model/model.onnx")));
}

/* A folder named through a link may be replaced by its neighbour: the link then leads there. */
static void check_folder_links(void)
{
    confine_folders("other/link");
    CHECK(can_read(at("other/link/model.onnx")));
    CHECK(can_read(at("keys/keys")) && can_read(at("other/secret")));
    CHECK(open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC) == -1 && errno == EACCES);
}

static void test_only_named_files_are_read(void)
{
    make_folders();
    in_child(check_reading);
    remove_folders();
}

static void test_only_own_files_are_written(void)
{
    make_folders();
    in_child(check_writing);
    remove_folders();
}

static void test_no_program_is_run(void)
{
    make_folders();
    in_child(check_running);
    remove_folders();
}

static void test_files_may_be_replaced(void)
{
    char byte;
    make_folders();
    CHECK(!pipe2(to_child, O_CLOEXEC) && !pipe2(to_parent, O_CLOEXEC));
    const pid_t child = start_child(check_replaced);
    CHECK(read(to_parent[0], &byte, 1) == 1);
    replace_keys();
    CHECK(write(to_child[1], &byte, 1) == 1);
    end_child(child);
    remove_folders();
}

static void test_links_are_followed_where_they_are_named(void)
{
    make_folders();
    CHECK(!symlink(at("model/model.onnx"), at("other/link")));
    in_child(check_links);
    CHECK(!unlink(at("other/link")) && !symlink(at("model"), at("other/link")));
    in_child(check_folder_links);
    remove_folders();
}

/* ---- sockets and signals ---- */

static int listen_on_loopback(struct sockaddr_in *address)
{
    socklen_t size = sizeof *address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)address, size) && !listen(fd, 1));
    CHECK(!getsockname(fd, (struct sockaddr *)address, &size));
    return fd;
}

static void check_network(void)
{
    struct sockaddr_in address, own = {.sin_family = AF_INET, .sin_port = 0};
    struct sockaddr_un hidden = {.sun_family = AF_UNIX};
    struct confinement confinement;
    const struct config config = {0};
    const int listening = listen_on_loopback(&address);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int abstract = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const socklen_t size = offsetof(struct sockaddr_un, sun_path) + 24;
    CHECK(fd >= 0 && other >= 0 && abstract >= 0 && client >= 0);
    snprintf(hidden.sun_path + 1, sizeof hidden.sun_path - 1, "lensd-confine-%08x------",
             (unsigned)getpid());
    CHECK(!bind(abstract, (struct sockaddr *)&hidden, size) && !listen(abstract, 1));
    confine_files(&config, &confinement);
    if (confinement.landlock >= 4) {
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == -1 && errno == EACCES);
        own.sin_port = htons((uint16_t)(ntohs(address.sin_port) ^ 1));
        CHECK(bind(other, (struct sockaddr *)&own, sizeof own) == -1 && errno == EACCES);
        own.sin_port = 0;
        CHECK(!bind(other, (struct sockaddr *)&own, sizeof own));
    }
    if (confinement.landlock >= 6) {
        CHECK(connect(client, (struct sockaddr *)&hidden, size) == -1 && errno == EPERM);
        CHECK(kill(getppid(), 0) == -1 && errno == EPERM);
        CHECK(!kill(getpid(), 0));
    }
    close(listening);
}

static void test_no_other_address_or_process_is_reached(void)
{
    in_child(check_network);
}

/* Of the parent, which is not confined and runs as the same user: root, where the tests run as
 * root. */
static void check_processes(void)
{
    static const char *const files[] = {"environ", "maps", "auxv", "mem", "root", "cwd"};
    const struct config config = {0};
    struct confinement confinement;
    char path[64];
    bool was_readable = false;
    for (int is_confined = 0; is_confined < 2; is_confined++) {
        for (size_t i = 0; i < COUNT_OF(files); i++) {
            snprintf(path, sizeof path, "/proc/%d/%s", (int)getppid(), files[i]);
            const int fd = open(path, O_RDONLY | O_CLOEXEC);
            was_readable |= fd >= 0;
            CHECK(!is_confined || (fd == -1 && errno == EACCES));
            if (fd >= 0)
                close(fd);
        }
        if (!is_confined)
            confine_files(&config, &confinement);
    }
    CHECK(was_readable);
}

static void test_other_processes_are_not_read(void)
{
    in_child(check_processes);
}

static void skip(void)
{
}

int main(void)
{
    const uint32_t action = SECCOMP_RET_ERRNO;
    const bool has_seccomp = !syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action);
    const bool has_landlock =
        syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) > 0;
    const struct tap_test without_seccomp = {"calls # SKIP no seccomp here", skip};
    const struct tap_test without_landlock = {"files # SKIP no Landlock here", skip};
    enum { CALLS = 3 }; /* the first ones are of system calls */
    struct tap_test tests[] = {
        {"calls are refused in all threads", test_calls_are_refused_in_all_threads},
        {"calls are refused where CUDA is in use", test_calls_are_refused_where_cuda_is_in_use},
        {"decode workers have a stricter filter", test_decode_workers_have_a_stricter_filter},
        {"only named files are read", test_only_named_files_are_read},
        {"only own files are written", test_only_own_files_are_written},
        {"no program is run", test_no_program_is_run},
        {"files may be replaced", test_files_may_be_replaced},
        {"links are followed where they are named", test_links_are_followed_where_they_are_named},
        {"no other address or process is reached", test_no_other_address_or_process_is_reached},
        {"other processes are not read", test_other_processes_are_not_read},
    };
    for (size_t i = 0; i < COUNT_OF(tests); i++) {
        if (i < CALLS && !has_seccomp)
            tests[i] = without_seccomp;
        if (i >= CALLS && !has_landlock)
            tests[i] = without_landlock;
    }
    return tap_run(tests, COUNT_OF(tests), NULL);
}
