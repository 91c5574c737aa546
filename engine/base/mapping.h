/* Files mapped for reading, safe against files that shrink or change.
 *
 * A page that a mapped file has lost raises SIGBUS where it is read. Here it reads as zeros
 * instead, and the mapping is marked as torn (as systemd's journal reader does it), so that whoever
 * reads a mapping asks mapping_torn() before what was read is used. The handler is installed with
 * the first mapping; faults elsewhere go to the handler that was there before. A descriptor of each
 * mapped file stays open, so that mapping_is_whole() also sees one that was overwritten in place.
 *
 * Threads that read mappings must not block SIGBUS: a blocked fault ends the process. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* What the user is told where mapping_is_whole() says no. */
#define MAPPING_CHANGED "the file changed while it was read"

struct mapping;

/* Bytes offset … offset + bytes of the file, which were there a moment ago; not writable. bytes >
 * 0. The descriptor may be closed afterwards. STATUS_IO or STATUS_NO_MEMORY, also when too many
 * mappings (4096) are open. */
enum status mapping_create(int fd, uint64_t offset, size_t bytes, struct mapping **ret,
                           struct error *err) MUST_USE;

/* NULL is fine. */
void mapping_free(struct mapping *mapping);

/* Valid, and at the same address, until mapping_free(). */
void *mapping_data(const struct mapping *mapping);

/* Has a page been read that the file did not have any more? */
bool mapping_torn(const struct mapping *mapping);

/* mapping_torn() says no, and size, time of the last change and the last page of the file are as
 * they were: what was read belongs together. A file that ends inside a page raises no signal for
 * the rest of it. Reads that page. True for a mapping that is settled. */
bool mapping_is_whole(const struct mapping *mapping);

/* Makes the bytes the process's own, at the same address, so that the file may change from now on.
 * Nobody may read meanwhile. STATUS_IO when the file has changed, STATUS_NO_MEMORY; the mapping is
 * then only good for mapping_free(). Again: nothing to do. */
enum status mapping_settle(struct mapping *mapping, struct error *err) MUST_USE;

/* Gives the pages back; they come from the file again when they are read. Nothing to do for a
 * mapping that is settled. */
void mapping_let_go(struct mapping *mapping);
