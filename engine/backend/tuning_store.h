/* The tuning store keeps results of measurements for this process and for later starts.
 *
 * The process has one table. The table is saved in the --cache folder, in one file per CPU and
 * build of lensd, because builds have different kernels even if their version is the same. An entry
 * is a short text under a kind and a hash. The hash covers everything else that the result depends
 * on: the GPU if there is one, the layer or the model, and options.
 *
 *     lensd tunings 1 5f0e7d1c9a3b24680f1e2d3c4b5a6978     format; hash of CPU and build
 *     cuda 0123456789abcdef0123456789abcdef 3 3 9          kind, hash, length of the text, text
 *     …
 *     end 8d3f6a5b1c2e40979a8b7c6d5e4f3021                 hash of all bytes before this line
 *
 * A file in any other form is ignored, and the next write replaces it. A write first reads the
 * entries that other processes have added. Then it renames a new file over the old one, so that
 * readers see a whole file. A lock on the folder serialises writers.
 *
 * Readers check each text. A user who can write to the folder can only change which of several
 * correct kernels or precisions is used.
 *
 * All functions are thread-safe. */
#pragma once

#include "engine/graph/graph.h"

enum tuning_kind {
    TUNING_CUDA,      /* the tile or algorithm of a layer on a GPU */
    TUNING_PRECISION, /* the precision of a model, and its trials */
};

#define TUNING_TEXT 4096 /* bytes of a text with its terminator */

/* ---- the table ---- */

/* Copies the text. Returns false if there is no entry. */
bool tuning_find(enum tuning_kind kind, const struct graph_hash *key, char ret[static TUNING_TEXT]);

/* Stores a copy of a result that was measured in this process. The copy replaces an earlier entry.
 * If the text is too long or memory is short, the result is not stored, and will be measured again.
 * The table has 8192 entries. When it is full, a new entry replaces the oldest one, and entries
 * from files are not added. */
void tuning_keep(enum tuning_kind kind, const struct graph_hash *key, const char *text);

/* For tests: calls `visit` for each entry of the kind; visit must not call tuning_*(). */
void tuning_each(enum tuning_kind kind,
                 void (*visit)(void *context, const struct graph_hash *key, const char *text),
                 void *context);

/* For tests: empties the table, and forgets tuning_save()'s folder. */
void tuning_forget(void);

/* ---- the file ---- */

/* Returns the folder for `option` (--cache), malloc'ed. If `option` is NULL: $XDG_CACHE_HOME/lensd
 * or ~/.cache/lensd. Returns NULL to save nothing: for "none", or without a home folder. */
char *tuning_folder(const char *option);

/* Adds the entries of the folder's file, but does not replace those that this process measured
 * since its last write. A missing file is not an error. STATUS_NO_MEMORY, or STATUS_IO if the file
 * is damaged or unreadable; then nothing is added. */
enum status tuning_read(const char *folder, struct error *err) MUST_USE;

/* Writes entries that were measured since the last write, if any, and creates the folder if needed.
 * On STATUS_IO the old file stays as it was, and the next call tries again. STATUS_NO_MEMORY. */
enum status tuning_write(const char *folder, struct error *err) MUST_USE;

/* Writes the new entries to the folder that tuning_read() read last, if any. A load calls this
 * after each batch size, so that results survive a killed load. Does not report failures, unlike
 * tuning_write(). */
void tuning_save(void);

/* Creates the folder and missing parent folders. Returns false with errno set on failure. */
bool tuning_make_folder(const char *folder);

/* Tests whether the folder, or its nearest existing parent, is writable, and leaves nothing there.
 * STATUS_IO; the message is only the system's reason ("Permission denied"). */
enum status tuning_try_folder(const char *folder, struct error *err) MUST_USE;
