/* The subcommands, and functions that they share. Each command returns the exit status of the
 * process: 0 for success; 1 if an image failed, a model is not supported, no device was measured or
 * command_health() failed; 130 if SIGINT ends predict; otherwise the status of process_failed(). */
#pragma once

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "server/app/config.h"

int command_predict(const struct config *config); /* also lensd embed */
int command_devices(const struct config *config);
int command_health(const struct config *config);
int command_inspect(const struct config *config);
int command_profile(const struct config *config); /* inspect --profile */
int command_bench(const struct config *config);
int command_quantize(const struct config *config);
int command_pull(const struct config *config);
int command_key(const struct config *config);

/* Returns options of a session on the CPU for this model. The caller sets max_batch. */
struct session_options command_session_options(const struct model *model);

/* Checks the name of a folder to create, and removes the slashes at its end. STATUS_CONFIG: a file
 * or folder has this name; STATUS_NO_MEMORY: `folder` is NULL. */
enum status command_folder(char *folder, struct error *err);

/* Prints the results of lensd predict for a photo, or its error, on standard output. */
void print_image(const char *path, const struct predict_image *image);

/* Shows a progress bar if standard error is a terminal. Otherwise, with `in_log`, prints a line
 * when `what` changes and every ten seconds. `share`: 0 … 1. Not thread-safe. */
void progress_show(const char *what, double share, bool in_log);
void progress_clear(void);

/* Writes "3.4 MB" or "812 bytes"; returns `text`. */
#define SIZE_TEXT 32
const char *size_text(uint64_t bytes, char text[static SIZE_TEXT]);
/* Returns the text of size_text(), valid until the end of the enclosing block. */
#define SIZE_STRING(bytes) size_text((bytes), (char[SIZE_TEXT]){0})

/* Prints malloc'ed JSON and frees it; reports NULL as "out of memory". Returns the exit status. */
int print_json(char *json);
