/* Files mapped for reading, safe against files that shrink or change.
 *
 * Reading a page that the file no longer has raises SIGBUS. Like systemd's journal reader, the
 * handler here maps a page of zeros instead and marks the mapping as torn. After reading, callers
 * check mapping_is_whole() before they rely on what they have read. The handler is installed with
 * the first mapping and passes other faults on to the previous handler. A descriptor of each mapped
 * file stays open, so that mapping_is_whole() also detects a file that was overwritten in place.
 *
 * Threads that read mappings must not block SIGBUS: a blocked fault ends the process. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* The error text when mapping_is_whole() is false. */
#define MAPPING_CHANGED "the file changed while it was read"

struct mapping;

/* Maps `bytes` (> 0) bytes of the file from `offset` on, read-only. The caller has just checked
 * that the file is long enough, and may close the descriptor afterwards. Errors: STATUS_IO;
 * STATUS_NO_MEMORY, also when 4096 mappings exist or no descriptor is left. */
enum status mapping_create(int fd, uint64_t offset, size_t bytes, struct mapping **ret,
                           struct error *err) MUST_USE;

void mapping_free(struct mapping *mapping);

/* The address stays the same until mapping_free(). */
void *mapping_data(const struct mapping *mapping);

/* True after a read of a page that the file no longer has. */
bool mapping_torn(const struct mapping *mapping);

/* True if the file has not changed since it was mapped: no page is torn, and size, modification
 * time and last page are the same. The last page is compared because a file that ends inside it
 * raises no signal. Always true after mapping_settle(). */
bool mapping_is_whole(const struct mapping *mapping);

/* Copies the bytes into process memory at the same address. Afterwards the file may change. No
 * other thread may read the bytes meanwhile. STATUS_IO if the file has changed, or
 * STATUS_NO_MEMORY; the mapping can then only be freed. A second call does nothing. */
enum status mapping_settle(struct mapping *mapping, struct error *err) MUST_USE;

/* Releases the pages. The next read loads them again. Does nothing after mapping_settle(). */
void mapping_let_go(struct mapping *mapping);
