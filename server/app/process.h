/* The process: its PID and port files, its user, core dumps. */
#pragma once

#include <stdbool.h>

#include "engine/base/status.h"

/* Sets no_new_privs, so that the process cannot gain rights. Unless `core_dumps` is set, also
 * disables core dumps and debuggers (ptrace(2)), because the memory contains images and keys. */
void process_protect(bool core_dumps);

/* The next three functions do nothing if `path` is NULL. */

/* Checks that process_write_number() may replace `path`. STATUS_CONFIG if `path` is not a regular
 * file or, with `only_numbers`, if the file holds anything but one number. A missing or empty file
 * is accepted. */
enum status process_check_number_file(const char *option, const char *path, bool only_numbers,
                                      struct error *err) MUST_USE;

struct process_user {
    unsigned uid, gid;
    char name[64]; /* "" for a user ID without a name */
};

/* Writes `number` and a line end to `path`. Readers see the old file or the whole new one. `owner`
 * (NULL: the current user) owns the file, and so can empty it at the end, even in another user's
 * folder. The error names `option`, such as "--port-file". After a failure `path` is unchanged. */
enum status process_write_number(const char *option, const char *path, long number,
                                 const struct process_user *owner, struct error *err) MUST_USE;

/* Removes a file of process_write_number() if it still holds `number`; empties the file if it may
 * not be removed. */
void process_remove_number(const char *path, long number);

/* Looks up `text`: "NAME" or "NAME:GROUP", names or numeric IDs; does nothing for NULL.
 * STATUS_CONFIG: the user or group is unknown, or only root could become that user. */
enum status process_find_user(const char *text, struct process_user *ret,
                              struct error *err) MUST_USE;

/* Creates a folder and its missing parents with the rights of `user` (NULL: of the process). Does
 * not report failures, because a later write does. Call it only while there is one thread. */
void process_make_folder(const char *folder, const struct process_user *user);

/* Drops root's rights permanently, in all threads. Does nothing if the process already runs as
 * `user`. */
enum status process_become(const struct process_user *user, bool core_dumps,
                           struct error *err) MUST_USE;

/* Writes "lensd: sentence" to standard error. Returns the exit status: 2 for problems that users
 * must fix; 1 for problems that may be gone at the next start, such as too little memory, a missing
 * GPU, a port in use. */
int process_failed(const struct error *err);
