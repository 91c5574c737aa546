/* The subcommands, and functions that they share. Each command returns the exit status of the
 * process: 0 for success; 1 if an image failed, a model is not supported, no device was measured or
 * command_health() failed; 130 if SIGINT ends predict; otherwise that of process_failed(). */
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

/* Returns options for a session of the model on the CPU; the caller sets max_batch. */
struct session_options command_session_options(const struct model *model);

/* Removes the slashes at the end of `folder`, the name of a folder to create. STATUS_CONFIG if the
 * folder exists; STATUS_NO_MEMORY if `folder` is NULL. */
enum status command_folder(char *folder, struct error *err);

/* Prints the results of lensd predict for a photo, or its error, on standard output. */
void print_image(const char *path, const struct predict_image *image);

/* Shows a progress bar if standard error is a terminal. Otherwise, with `in_log` (for long work),
 * it prints a line for each new `what` and every ten seconds. `share`: 0 … 1. Not thread-safe. */
void progress_show(const char *what, double share, bool in_log);
void progress_clear(void);

/* Writes "3.4 MB" or "812 bytes"; returns `text`. */
#define SIZE_TEXT 32
const char *size_text(uint64_t bytes, char text[static SIZE_TEXT]);
/* Returns the text of size_text(), valid until the end of the enclosing block. */
#define SIZE_STRING(bytes) size_text((bytes), (char[SIZE_TEXT]){0})

/* Prints malloc'ed JSON and frees it; NULL means out of memory. Returns the exit status. */
int print_json(char *json);
