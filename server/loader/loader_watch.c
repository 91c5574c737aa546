/* Watches a folder and its sub-folders with inotify. */
#include "server/loader/loader_watch.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/size.h"

#define DEPTH 2 /* folder / model / version */
#define EVENTS                                                                                     \
    (IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |            \
     IN_DELETE_SELF | IN_MOVE_SELF)

struct watch {
    int fd;
    char *folder;
};

/* Watches a folder and `depth` levels of sub-folders. Keeps existing watches. */
static void watch_add(const struct watch *watch, const char *folder, int depth)
{
    if (inotify_add_watch(watch->fd, folder, EVENTS | IN_ONLYDIR) < 0 || depth == 0)
        return;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char *path = entry->d_name[0] == '.' ? NULL : path_join(folder, entry->d_name);
        if (path)
            watch_add(watch, path, depth - 1); /* IN_ONLYDIR refuses files */
        free(path);
    }
    if (dir)
        closedir(dir);
}

struct watch *watch_create(const char *path)
{
    struct watch *watch = calloc(1, sizeof *watch);
    char folder[PATH_MAX];
    if (!watch)
        return NULL;
    watch->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (path_is_file(path)) {
        path_folder(path, folder);
        path = folder;
    }
    watch->folder = strdup(path);
    if (watch->fd < 0 || !watch->folder || access(path, F_OK) != 0) {
        watch_free(watch);
        return NULL;
    }
    watch_renew(watch);
    return watch;
}

int watch_fd(const struct watch *watch)
{
    return watch ? watch->fd : -1;
}

bool watch_take(struct watch *watch)
{
    char events[4096] __attribute__((aligned(8)));
    bool any = false;
    while (watch && read(watch->fd, events, sizeof events) > 0)
        any = true;
    return any;
}

void watch_renew(struct watch *watch)
{
    if (watch)
        watch_add(watch, watch->folder, DEPTH);
}

void watch_free(struct watch *watch)
{
    if (!watch)
        return;
    if (watch->fd >= 0)
        close(watch->fd);
    FREE_ALL(watch->folder, watch);
}
