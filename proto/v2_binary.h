/* Outputs of an inference as bytes, as JSON answers and messages both carry them. Private to
 * proto/. */
#pragma once

#include "proto/text.h"
#include "proto/v2.h"

/* Bytes of the rows, or of the texts with their lengths. */
size_t v2_binary_size(const struct v2_answer_output *output);
void v2_put_binary(struct text *text, const struct v2_answer_output *output);

/* Of messages. The bytes written. */
#define V2_VARINT 10
size_t v2_put_varint(uint8_t at[static V2_VARINT], uint64_t value);
