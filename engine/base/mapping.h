/* Files mapped for reading, safe against files that shrink or change.
 *
 * Reading a page that the file no longer has raises SIGBUS. Here the page reads as zeros instead,
 * and the mapping is marked as torn (as systemd's journal reader does): callers check
 * mapping_torn() before they use what they read. The handler is installed with the first mapping;
 * other faults go to the handler that was there before. A descriptor of each
 * mapped file stays open, so that mapping_is_whole() also sees one that was overwritten in place.
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

/* Maps bytes offset … offset + bytes of the file, which the caller has just seen there; not
 * writable. bytes > 0. The descriptor may be closed afterwards. STATUS_IO or STATUS_NO_MEMORY, also
 * when too many mappings (4096) are open. */
enum status mapping_create(int fd, uint64_t offset, size_t bytes, struct mapping **ret,
                           struct error *err) MUST_USE;

/* NULL is fine. */
void mapping_free(struct mapping *mapping);

/* Valid, and at the same address, until mapping_free(). */
void *mapping_data(const struct mapping *mapping);

/* True once a page was read that the file no longer had. */
bool mapping_torn(const struct mapping *mapping);

/* True if the file has not changed since it was mapped: no page is torn, and size, modification
 * time and last page are as they were. The last page is compared because a file that ends inside it
 * raises no signal. Always true for a settled mapping. */
bool mapping_is_whole(const struct mapping *mapping);

/* Copies the bytes into memory of the process, at the same address, so that the file may change
 * from now on. No thread may read meanwhile. STATUS_IO if the file has changed, STATUS_NO_MEMORY;
 * afterwards the mapping can only be freed. Does nothing the second time. */
enum status mapping_settle(struct mapping *mapping, struct error *err) MUST_USE;

/* Releases the pages; the next read loads them from the file again. Does nothing for a settled
 * mapping. */
void mapping_let_go(struct mapping *mapping);
