/* Private to proto/: appends fields of protobuf messages. */
#pragma once

#include "proto/strbuf.h"

void v2_add_varint(struct strbuf *to, uint64_t value);
/* Appends field `number` with these bytes. */
void v2_add_bytes(struct strbuf *to, unsigned number, const char *bytes, size_t size);
/* Appends `inner` as a field's bytes, and frees it. */
void v2_add_inner(struct strbuf *to, unsigned number, struct strbuf *inner);
