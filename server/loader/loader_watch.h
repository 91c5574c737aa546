/* Tells that something changed below a folder: inotify on it, its sub-folders and theirs (a model's
 * versions). Where the kernel has no watch left, or the file system reports no changes, there are
 * no events, and the caller must scan from time to time. One thread. */
#pragma once

#include <stdbool.h>

struct watch;

/* Of a folder, or of the folder that a file is in. NULL: nothing will be heard. */
struct watch *watch_create(const char *path);
int watch_fd(const struct watch *watch); /* readable when something changed; -1 for NULL */
/* Reads pending events; returns whether there were any. */
bool watch_take(struct watch *watch);
/* Watches folders that have come since. */
void watch_renew(struct watch *watch);
void watch_free(struct watch *watch);
