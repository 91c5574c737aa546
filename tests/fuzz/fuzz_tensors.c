/* Bodies with tensors in JSON, taken to pieces: the Open Inference Protocol's and KServe's V1. The
 * first byte picks the reader and, for the former, how much of the body is JSON. Whatever comes is
 * refused with a sentence, or what was read lies inside it, and every number of a tensor that is
 * accepted was written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/json_extract.h"
#include "proto/v2.h"
#include "tests/fuzz/target.h"

#define MAX_COUNT 100000 /* numbers of a tensor: what is larger says nothing more */

static bool lies_inside(const void *at, size_t size, const void *text, size_t text_size)
{
    uintptr_t begin = (uintptr_t)text, from = (uintptr_t)at;
    return from >= begin && from - begin <= text_size && size <= text_size - (from - begin);
}

static void try_extract(const char *text, size_t size)
{
    static const struct extract_rule rules[] = {{3, "inputs", "data"}, {1, NULL, "instances"}};
    for (size_t r = 0; r < COUNT_OF(rules); r++) {
        struct json_span spans[4];
        struct error err = {0};
        struct extraction cut = {
            .rule = &rules[r], .rest = malloc(size + 1), .spans = spans, .max = COUNT_OF(spans)};
        HOLDS(cut.rest);
        if (json_extract(text, size, &JSON_LIMITS_DEFAULT, &cut, &err) != STATUS_OK) {
            HOLDS(err.message[0]);
        } else {
            HOLDS(cut.rest_size <= size && cut.rest[cut.rest_size] == '\0');
            HOLDS(cut.count <= COUNT_OF(spans));
            HOLDS(json_check(cut.rest, cut.rest_size, &JSON_LIMITS_DEFAULT, &err) == STATUS_OK);
            for (size_t i = 0; i < cut.count; i++)
                HOLDS(lies_inside(spans[i].text, spans[i].size, text, size));
        }
        free(cut.rest);
    }
}

static void read_numbers(const struct v2_input *input)
{
    struct error err = {0};
    size_t bytes = input->count * dtype_size(input->dtype);
    uint8_t *numbers = malloc(bytes + 1);
    HOLDS(numbers);
    numbers[bytes] = 0xA5;
    if (v2_read_numbers(input, numbers, &err) != STATUS_OK)
        HOLDS(err.message[0]);
    else
        for (size_t i = 0; input->dtype == DTYPE_F32 && i < input->count; i++)
            HOLDS(isfinite(((const float *)(void *)numbers)[i]));
    HOLDS(numbers[bytes] == 0xA5);
    free(numbers);
}

static bool is_image(const uint8_t *data, size_t size)
{
    return size > 1 && data[0] == 0xFF && data[1] == 0xD8;
}

static void read_texts(const struct v2_request *request, const struct v2_input *input, size_t size)
{
    struct error err = {0};
    struct v2_bytes *texts = alloc_array(input->count, sizeof *texts);
    HOLDS(texts);
    if (v2_read_bytes(request, input, is_image, texts, &err) != STATUS_OK) {
        HOLDS(err.message[0]);
    } else {
        volatile uint8_t sum = 0;
        for (size_t i = 0; i < input->count; i++) {
            HOLDS(texts[i].size <= size);
            for (size_t k = 0; k < texts[i].size; k++)
                sum = (uint8_t)(sum + texts[i].data[k]);
        }
    }
    free(texts);
}

static void try_v2(const uint8_t *body, size_t size, size_t json_size)
{
    const struct json_limits limits = {16, 1000};
    struct v2_request *request = NULL;
    struct error err = {0};
    enum status status = v2_request_parse(body, size, json_size, &limits, &request, &err);
    if (status != STATUS_OK) {
        HOLDS(err.message[0] && status != STATUS_NO_MEMORY);
        v2_request_free(request);
        return;
    }
    HOLDS(request->input_count <= V2_MAX_TENSORS && request->output_count <= V2_MAX_TENSORS);
    for (size_t i = 0; i < request->input_count; i++) {
        const struct v2_input *input = &request->inputs[i];
        HOLDS(input->name && input->datatype && (input->json != NULL) != (input->binary != NULL));
        HOLDS(!input->json || lies_inside(input->json, input->json_size, body, json_size));
        HOLDS(!input->binary || lies_inside(input->binary, input->binary_size, body, size));
        if (input->count > MAX_COUNT)
            continue;
        if (input->dtype == DTYPE_NONE)
            read_texts(request, input, size);
        else if (input->json)
            read_numbers(input);
    }
    v2_request_free(request);
}

static void try_v1(const char *text, size_t size)
{
    const struct json_limits limits = {16, 1000};
    const struct v2_input wanted = {.name = "x", .datatype = "FP32", .shape = SHAPE(1, 3)};
    struct v2_request *request = NULL;
    struct error err = {0};
    const bool are_texts = size & 1;
    enum status status = v1_request_parse(text, size, &limits, &wanted, are_texts, &request, &err);
    if (status != STATUS_OK) {
        HOLDS(err.message[0] && status != STATUS_NO_MEMORY);
        v2_request_free(request);
        return;
    }
    HOLDS(request->input_count == 1);
    const struct v2_input *input = &request->inputs[0];
    HOLDS((input->json != NULL) != (input->elements != NULL));
    if (input->elements) {
        read_texts(request, input, size);
    } else {
        HOLDS(lies_inside(input->json, input->json_size, text, size));
        if (input->count <= MAX_COUNT)
            read_numbers(input);
    }
    v2_request_free(request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    /* An exact copy: a read past the end is seen. */
    size_t length = size - 1;
    uint8_t *body = malloc(length + !length);
    HOLDS(body);
    memcpy(body, data + 1, length);
    switch (data[0] % 4) {
    case 0:
        try_extract((const char *)body, length);
        break;
    case 1:
        try_v1((const char *)body, length);
        break;
    case 2:
        try_v2(body, length, length);
        break;
    default: {
        /* JSON up to the first NUL, tensors behind it. */
        const uint8_t *end = memchr(body, '\0', length);
        try_v2(body, length, end ? (size_t)(end - body) : length);
    }
    }
    free(body);
    return 0;
}
