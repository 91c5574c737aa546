/* The tuning store keeps results of measurements for this process and for later starts.
 *
 * The process has one table. The table is saved in the --cache folder, in one file per CPU and
 * build of lensd, because builds have different kernels even if their version is the same. An entry
 * is a short text under a kind and a hash. The hash covers what the result depends on besides CPU
 * and build: the GPU if there is one, the layer or the model, and options.
 *
 *     lensd tunings 1 5f0e7d1c9a3b24680f1e2d3c4b5a6978     format; hash of CPU and build
 *     kernel 0123456789abcdef0123456789abcdef 8 winograd   kind, hash, length of the text, text
 *     …
 *     end 8d3f6a5b1c2e40979a8b7c6d5e4f3021                 hash of all bytes before this line
 *
 * A file in any other form is ignored, and the next write replaces it. A write first reads what
 * other processes have added, then renames a new file over the old one, so that readers see a whole
 * file. A lock on the folder serialises writers.
 *
 * Readers check each text. Someone who can write to the folder can only change which of several
 * correct kernels or precisions is used.
 *
 * All functions are thread-safe. */
#pragma once

#include "engine/graph/graph.h"

enum tuning_kind {
    TUNING_KERNEL,    /* the kernel of a layer on the CPU */
    TUNING_CUDA,      /* the tile or algorithm of a layer on a GPU */
    TUNING_PRECISION, /* the precision of a model, and its trials */
};

#define TUNING_TEXT 4096 /* bytes of a text with its terminator */

/* ---- the table ---- */

/* Copies the text; false if there is no entry. */
bool tuning_find(enum tuning_kind kind, const struct graph_hash *key, char ret[static TUNING_TEXT]);

/* Stores a copy of a text that was measured in this process, replacing an earlier one. A text that
 * is too long, or for which there is no memory, is not stored and will be measured again. The table
 * has 8192 entries; when it is full, the oldest entry is dropped, and files add nothing to it. */
void tuning_keep(enum tuning_kind kind, const struct graph_hash *key, const char *text);

/* For tests: calls `visit` for each entry of the kind; visit must not call tuning_*(). */
void tuning_each(enum tuning_kind kind,
                 void (*visit)(void *context, const struct graph_hash *key, const char *text),
                 void *context);

/* For tests: empties the table, and forgets tuning_save()'s folder. */
void tuning_forget(void);

/* ---- the file ---- */

/* Returns the folder for `option` (--cache), malloc'ed. NULL means $XDG_CACHE_HOME/lensd or
 * ~/.cache/lensd. Returns NULL for "none", or if there is no home folder: then nothing is saved. */
char *tuning_folder(const char *option);

/* Adds the entries of the folder's file; entries measured by this process since its last write are
 * kept. A missing file is not an error. STATUS_IO: the file is damaged or cannot be read; nothing
 * is added. */
enum status tuning_read(const char *folder, struct error *err) MUST_USE;

/* Writes what was measured since the last write, if anything; makes the folder if need be.
 * STATUS_IO leaves the file before as it was; the next call tries again. STATUS_NO_MEMORY. */
enum status tuning_write(const char *folder, struct error *err) MUST_USE;

/* The same, into the folder that tuning_read() read last, if any. Loads call it between trials, so
 * that a load that is killed keeps them. Reports no failure; tuning_write() does. */
void tuning_save(void);

/* Makes the folder and those above it, as far as they are missing; false with errno set. */
bool tuning_make_folder(const char *folder);

/* Whether something could be written there: tried in what there is of the folder, leaving nothing
 * behind. STATUS_IO; the message is the system's reason alone ("Permission denied"). */
enum status tuning_try_folder(const char *folder, struct error *err) MUST_USE;
