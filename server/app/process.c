/* The PID and port files, the user, and core dumps. */
#include "server/app/process.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/file.h"
#include "server/observe/log.h"

void process_protect(bool core_dumps)
{
    struct rlimit limit;
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (core_dumps)
        return;
    if (getrlimit(RLIMIT_CORE, &limit) == 0) {
        limit.rlim_cur = 0;
        (void)setrlimit(RLIMIT_CORE, &limit);
    }
    /* If core_pattern names a program, the kernel ignores the size limit. */
    (void)prctl(PR_SET_DUMPABLE, 0);
}

enum status process_check_number_file(const char *option, const char *path, bool only_numbers,
                                      struct error *err)
{
    struct stat info;
    char text[64], rest;
    long number;
    if (!path || lstat(path, &info) != 0)
        return STATUS_OK; /* the file does not exist, or a write will report the error */
    if (!S_ISREG(info.st_mode))
        return error_set(err, STATUS_CONFIG,
                         "%s '%.200s' is there already and is %s, not a file; name one that may be "
                         "replaced",
                         option, path,
                         S_ISDIR(info.st_mode)   ? "a folder"
                         : S_ISLNK(info.st_mode) ? "a symbolic link"
                                                 : "a device, pipe or socket");
    if (!only_numbers || info.st_size == 0)
        return STATUS_OK;
    if (!file_read_start(path, text, sizeof text))
        return error_set(err, STATUS_CONFIG, "cannot read %s '%.200s': %s", option, path,
                         strerror(errno));
    /* NOLINTNEXTLINE(cert-err34-c): a number of at most 18 characters fits */
    if (strlen(text) != (size_t)info.st_size || sscanf(text, "%18ld %c", &number, &rest) != 1)
        return error_set(err, STATUS_CONFIG,
                         "%s '%.200s' is not a pid file: it holds something else, which would be "
                         "lost; name another, or remove it",
                         option, path);
    return STATUS_OK;
}

/* Creates `path` for writing. Replaces a regular file, which a killed process may have left.
 * Returns NULL with errno if anything else has this name. */
static FILE *create_aside(const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISREG(info.st_mode))
        (void)unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !file)
        close(fd);
    return file;
}

enum status process_write_number(const char *option, const char *path, long number,
                                 const struct process_user *owner, struct error *err)
{
    char *aside = NULL;
    bool written = false;
    if (!path)
        return STATUS_OK;
    if (asprintf(&aside, "%s.new", path) < 0)
        return error_no_memory(err, NULL);
    FILE *file = create_aside(aside);
    if (file) {
        written = fprintf(file, "%ld\n", number) > 0 &&
                  (!owner || fchown(fileno(file), owner->uid, owner->gid) == 0);
        written = fclose(file) == 0 && written;
    }
    written = written && rename(aside, path) == 0;
    int cause = errno;
    if (!written && file)
        (void)unlink(aside);
    free(aside);
    if (!written)
        return error_set(err, STATUS_CONFIG, "cannot write %s '%.200s': %s", option, path,
                         strerror(cause));
    return STATUS_OK;
}

void process_remove_number(const char *path, long number)
{
    struct stat info;
    char text[64], rest;
    long held;
    if (!path || lstat(path, &info) != 0 || !S_ISREG(info.st_mode) || /* leaves a link */
        !file_read_start(path, text, sizeof text))
        return;
    /* NOLINTNEXTLINE(cert-err34-c): a number that does not fit is not `number` */
    if (sscanf(text, "%ld %c", &held, &rest) != 1 || held != number || unlink(path) == 0)
        return;
    /* Empties the file instead. If this also fails, the file stays. */
    int fd = open(path, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
}

static bool read_id(const char *text, unsigned *ret)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || value >= (unsigned)-1)
        return false;
    *ret = (unsigned)value;
    return true;
}

static enum status find_group(const char *text, unsigned *ret, struct error *err)
{
    const struct group *group = getgrnam(text);
    if (group)
        *ret = group->gr_gid;
    if (group || read_id(text, ret))
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG,
                     "--user names group '%.60s', which is not a group of this system", text);
}

enum status process_find_user(const char *text, struct process_user *ret, struct error *err)
{
    char name[64], *colon;
    struct process_user user = {.name = ""};
    if (!text)
        return STATUS_OK;
    snprintf(name, sizeof name, "%s", text);
    colon = strchr(name, ':');
    if (colon)
        *colon++ = '\0';
    const struct passwd *entry = getpwnam(name);
    if (!entry && read_id(name, &user.uid))
        entry = getpwuid(user.uid);
    else if (!entry)
        return error_set(err, STATUS_CONFIG,
                         "--user names '%.60s', which is not a user of this system; create it "
                         "first: adduser --system --group %.60s",
                         name, name);
    user.gid = user.uid;
    if (entry) {
        user.uid = entry->pw_uid;
        user.gid = entry->pw_gid;
        snprintf(user.name, sizeof user.name, "%s", entry->pw_name);
    }
    if (colon)
        TRY(find_group(colon, &user.gid, err));
    if (geteuid() != 0 && (geteuid() != user.uid || getegid() != user.gid))
        return error_set(err, STATUS_CONFIG,
                         "only root can become '%.60s'; start lensd as root, or as that user "
                         "without --user",
                         text);
    *ret = user;
    return STATUS_OK;
}

void process_make_folder(const char *folder, const struct process_user *user)
{
    if (!user) { /* lensd.service forbids every seteuid() */
        (void)tuning_make_folder(folder);
        return;
    }
    const uid_t uid = geteuid();
    const gid_t gid = getegid();
    if (setegid(user->gid) == 0 && seteuid(user->uid) == 0)
        (void)tuning_make_folder(folder);
    if (seteuid(uid) != 0 || setegid(gid) != 0)
        abort();
}

enum status process_become(const struct process_user *user, bool core_dumps, struct error *err)
{
    if (geteuid() == user->uid && getegid() == user->gid)
        return STATUS_OK;
    bool done = (user->name[0] ? initgroups(user->name, user->gid) : setgroups(0, NULL)) == 0 &&
                setgid(user->gid) == 0 && setuid(user->uid) == 0;
    if (!done)
        return error_set(err, STATUS_CONFIG, "cannot become user %u, group %u: %s", user->uid,
                         user->gid, strerror(errno));
    /* Dropping root's rights must be irreversible. */
    if (user->uid != 0 && setuid(0) == 0)
        return error_set(
            err, STATUS_INTERNAL,
            "the process could regain root's rights; run lensd as the user from the start");
    (void)prctl(PR_SET_DUMPABLE, core_dumps ? 1 : 0); /* setuid() has reset this flag */
    return STATUS_OK;
}

int process_failed(const struct error *err)
{
    log_print("lensd: %s", err->message);
    switch (err->status) {
    case STATUS_NO_MEMORY:
    case STATUS_SHORT_OF_MEMORY:
    case STATUS_DEVICE:
    case STATUS_DEVICE_MEMORY:
    case STATUS_NOT_READY:
        return 1;
    default:
        return 2;
    }
}
