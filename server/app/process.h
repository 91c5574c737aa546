/* The process: its PID file, its user, core dumps. */
#pragma once

#include <stdbool.h>

#include "engine/base/status.h"

/* No core dumps, which would hold photos and keys, and nobody but root may look into its memory;
 * never more rights than now. With `core_dumps` what the system allows. */
void process_protect(bool core_dumps);

/* Refuses a `path` that process_write_number would replace and should not: what is there and is no
 * regular file (a device, a link, a folder), and where `only_numbers` a file with anything in it
 * but a number. STATUS_CONFIG. */
enum status process_check_number_file(const char *option, const char *path, bool only_numbers,
                                      struct error *err) MUST_USE;

/* Writes `number` and a line end to `path`; whoever waits for the file never sees half of it. It
 * belongs to `owner` (NULL: who writes it), who can empty it at the end where the folder is not
 * his. `option` is for the sentence: "--port-file". STATUS_CONFIG; nothing is left then. */
struct process_user;
enum status process_write_number(const char *option, const char *path, long number,
                                 const struct process_user *owner, struct error *err) MUST_USE;

/* Removes a file that process_write_number wrote, if it still holds that number; where it may not
 * be removed it is emptied, if that may be done. */
void process_remove_number(const char *path, long number);

/* Looks up "NAME", "NAME:GROUP" or numbers. STATUS_CONFIG for a user or group that is not there,
 * and where only root could become that user. */
struct process_user {
    unsigned uid, gid;
    char name[64]; /* "" for a number without a name */
};
enum status process_find_user(const char *text, struct process_user *ret,
                              struct error *err) MUST_USE;

/* Makes a folder and its missing parents with the rights of `user` (NULL: those of the process).
 * Failures are not reported: a later write to the folder reports them. Only while there is one
 * thread. */
void process_make_folder(const char *folder, const struct process_user *user);

/* Drops root's rights for good, in all threads. Does nothing if the process already runs as that
 * user. */
enum status process_become(const struct process_user *user, bool core_dumps,
                           struct error *err) MUST_USE;

/* Writes "lensd: sentence" to standard error. Returns 2, the exit status for what users can put
 * right; 1 where memory was short, which may be otherwise at the next start. */
int process_failed(const struct error *err);
