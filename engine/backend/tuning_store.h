/* The tuning store: what measurements found, for the process and for later starts.
 *
 * One table belongs to the process. One file keeps it, in the folder that --cache names, for this
 * CPU and this build of lensd: another build has other kernels, whatever its version says, and
 * another file. An entry is a short text under a kind and a hash. The hash covers what the finding
 * depends on beside CPU and build: the device where it is a GPU, the layer or the model, options.
 *
 *     lensd tunings 1 5f0e7d1c9a3b24680f1e2d3c4b5a6978     format; hash of CPU and build
 *     kernel 0123456789abcdef0123456789abcdef 8 winograd   kind, hash, length of the text, text
 *     …
 *     end 8d3f6a5b1c2e40979a8b7c6d5e4f3021                 hash of all bytes before this line
 *
 * A file that is not exactly like this is as good as none and is replaced by the next write. A
 * write first reads what other processes have added, then puts a new file in the old one's place;
 * readers see the one or the other. Processes that write at once take turns (a lock on the folder).
 *
 * Whoever can write the folder decides which of several right kernels or precisions is used, no
 * more: readers check each text.
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

/* Copies the text; false when there is none. */
bool tuning_find(enum tuning_kind kind, const struct graph_hash *key, char ret[static TUNING_TEXT]);

/* Keeps a copy of a text that was measured in this process, in place of the one before. A text that
 * is too long or finds no memory is not kept: it is measured again. The table has 8192 entries;
 * when it is full, the entry that was added first makes room, and files add nothing to it. */
void tuning_keep(enum tuning_kind kind, const struct graph_hash *key, const char *text);

/* For tests: calls `visit` for each entry of the kind; visit must not call tuning_*(). */
void tuning_each(enum tuning_kind kind,
                 void (*visit)(void *context, const struct graph_hash *key, const char *text),
                 void *context);

/* For tests: empties the table. */
void tuning_forget(void);

/* ---- the file ---- */

/* The folder that `option` (--cache) means, malloc'ed: NULL means $XDG_CACHE_HOME/lensd or
 * ~/.cache/lensd. Returns NULL for "none", and where there is no such folder: nothing is kept. */
char *tuning_folder(const char *option);

/* Adds what the folder's file holds; what this process measured since its last write stays. No file
 * is no error. STATUS_IO: a file is there that is damaged or cannot be read; nothing is added. */
enum status tuning_read(const char *folder, struct error *err) MUST_USE;

/* Writes what was measured since the last write, if anything; makes the folder if need be.
 * STATUS_IO leaves the file before as it was; the next call tries again. STATUS_NO_MEMORY. */
enum status tuning_write(const char *folder, struct error *err) MUST_USE;

/* Whether something could be written there: tried in what there is of the folder, leaving nothing
 * behind. STATUS_IO; the message is the system's reason alone ("Permission denied"). */
enum status tuning_try_folder(const char *folder, struct error *err) MUST_USE;
