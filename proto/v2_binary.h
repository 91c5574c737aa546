/* Private to proto/: outputs of an inference as bytes, for JSON answers and messages. */
#pragma once

#include "proto/strbuf.h"
#include "proto/v2.h"

/* The size of the rows, or of the texts with their length prefixes. */
size_t v2_binary_size(const struct v2_answer_output *output);
void v2_put_binary(struct strbuf *text, const struct v2_answer_output *output);

/* Writes a varint of a message. Returns the number of bytes. */
#define V2_VARINT 10
size_t v2_put_varint(uint8_t at[static V2_VARINT], uint64_t value);
