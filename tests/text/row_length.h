/* The length of a padded row, for tests that compare with `tokenizers`. */
#pragma once

#include "models/text/tokenizer.h"

/* The row of a text alone, as `tokenizers` pads it. */
static size_t row_length(const struct tokenizer_facts *facts, size_t count)
{
    const size_t length = count > facts->fixed_length ? count : facts->fixed_length;
    const size_t beyond = length % facts->length_multiple;
    return beyond ? length + facts->length_multiple - beyond : length;
}
