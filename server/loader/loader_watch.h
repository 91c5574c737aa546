/* Reports changes below a folder: inotify on it, its sub-folders and theirs (a model's versions).
 * If the kernel has no watch left, or the file system reports no changes, there are no events, and
 * the caller must scan periodically. One thread. */
#pragma once

#include <stdbool.h>

struct watch;

/* Watches a folder, or the folder of a file. NULL: there will be no events. */
struct watch *watch_create(const char *path);
int watch_fd(const struct watch *watch); /* readable when something changed; -1 for NULL */
/* Reads pending events; returns true if there were any. */
bool watch_take(struct watch *watch);
/* Watches new folders, too. */
void watch_renew(struct watch *watch);
void watch_free(struct watch *watch);
