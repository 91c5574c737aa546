/* Tells that something changed below a folder: inotify on it, its sub-folders and theirs (a model's
 * versions). Where the kernel has no watch left, or the file system does not tell, there is nothing
 * to hear, and whoever asks has to look for himself now and then. One thread. */
#pragma once

#include <stdbool.h>

struct watch;

/* Of a folder, or of the folder that a file is in. NULL: nothing will be heard. */
struct watch *watch_create(const char *path);
int watch_fd(const struct watch *watch); /* readable when something changed; -1 for NULL */
/* Reads what has been told; whether there was anything. */
bool watch_take(struct watch *watch);
/* Watches folders that have come since. */
void watch_renew(struct watch *watch);
void watch_free(struct watch *watch);
