/* Outputs of an inference as bytes, for both JSON answers and messages. Private to proto/. */
#pragma once

#include "proto/strbuf.h"
#include "proto/v2.h"

/* The size of the rows, or of the texts with their lengths. */
size_t v2_binary_size(const struct v2_answer_output *output);
void v2_put_binary(struct strbuf *text, const struct v2_answer_output *output);

/* Writes a varint for messages. Returns the number of bytes. */
#define V2_VARINT 10
size_t v2_put_varint(uint8_t at[static V2_VARINT], uint64_t value);
