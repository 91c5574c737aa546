/* Reports changes below a folder: uses inotify on it and two levels of sub-folders (models and
 * their versions). The caller must also scan periodically, because there are no events if the
 * kernel has no watch left or the file system reports no changes. One thread. */
#pragma once

#include <stdbool.h>

struct watch;

/* Watches the folder `path`, or the folder of the file `path`. NULL: it cannot be watched. */
struct watch *watch_create(const char *path);
int watch_fd(const struct watch *watch); /* readable when something changed; -1 for NULL */
/* Reads pending events; returns true if there were any. */
bool watch_take(struct watch *watch);
/* Also watches sub-folders that are new since the last call. */
void watch_renew(struct watch *watch);
void watch_free(struct watch *watch);
