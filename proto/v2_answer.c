/* Writes answers of inferences in the Open Inference Protocol into one buffer: JSON first, then
 * binary tensors; or a message of grpc_service.proto. */
#include <stdlib.h>
#include <string.h>

#include "proto/strbuf.h"
#include "proto/v2.h"

static void put_numbers(struct strbuf *text, const struct tensor *tensor, bool *is_first)
{
    size_t count = shape_count(&tensor->shape);
    for (size_t i = 0; i < count; i++) {
        if (!*is_first)
            strbuf_put(text, ",");
        *is_first = false;
        if (tensor->dtype == DTYPE_BOOL)
            strbuf_put(text, ((const uint8_t *)tensor->data)[i] ? "true" : "false");
        else
            strbuf_element(text, tensor, i);
    }
}

static size_t binary_size(const struct v2_answer_output *output)
{
    size_t bytes = 0;
    if (!output->texts)
        for (size_t r = 0; r < output->row_count; r++)
            bytes += output->rows[r]->bytes;
    else
        for (size_t i = 0; i < shape_count(&output->shape); i++)
            bytes += 4 + strlen(output->texts[i]);
    return bytes;
}

static void put_data(struct strbuf *text, const struct v2_answer_output *output)
{
    bool is_first = true;
    strbuf_put(text, ",\"data\":[");
    for (size_t r = 0; !output->texts && r < output->row_count; r++)
        put_numbers(text, output->rows[r], &is_first);
    for (size_t i = 0; output->texts && i < shape_count(&output->shape); i++) {
        if (i)
            strbuf_put(text, ",");
        strbuf_string(text, output->texts[i]);
    }
    strbuf_put(text, "]");
}

static const char *datatype_of(const struct v2_answer_output *output)
{
    return output->texts || !output->row_count ? "BYTES" : dtype_oip_name(output->rows[0]->dtype);
}

static void put_output(struct strbuf *text, const struct v2_answer_output *output)
{
    strbuf_put(text, "{\"name\":");
    strbuf_string(text, output->name);
    strbuf_put(text, ",\"datatype\":\"");
    strbuf_put(text, datatype_of(output));
    strbuf_put(text, "\",\"shape\":[");
    for (int d = 0; d < output->shape.rank; d++) {
        if (d)
            strbuf_put(text, ",");
        strbuf_number(text, output->shape.dims[d]);
    }
    strbuf_put(text, "]");
    if (output->binary) {
        strbuf_put(text, ",\"parameters\":{\"binary_data_size\":");
        strbuf_unsigned(text, binary_size(output));
        strbuf_put(text, "}");
    } else {
        put_data(text, output);
    }
    strbuf_put(text, "}");
}

static void put_binary(struct strbuf *text, const struct v2_answer_output *output)
{
    for (size_t r = 0; !output->texts && r < output->row_count; r++)
        strbuf_add(text, output->rows[r]->data, output->rows[r]->bytes);
    for (size_t i = 0; output->texts && i < shape_count(&output->shape); i++) {
        const uint32_t length = (uint32_t)strlen(output->texts[i]);
        strbuf_add(text, (const char *)&length, sizeof length); /* little-endian */
        strbuf_add(text, output->texts[i], length);
    }
}

char *v2_answer_body(const struct v2_answer *answer, size_t *ret_size, size_t *ret_json_size,
                     bool *ret_binary)
{
    struct strbuf text = {0};
    *ret_binary = false;
    strbuf_put(&text, "{\"model_name\":");
    strbuf_string(&text, answer->model);
    strbuf_put(&text, ",\"model_version\":");
    strbuf_string(&text, answer->version);
    if (answer->id) {
        strbuf_put(&text, ",\"id\":");
        strbuf_string(&text, answer->id);
    }
    strbuf_put(&text, ",\"outputs\":[");
    for (size_t i = 0; i < answer->output_count; i++) {
        if (i)
            strbuf_put(&text, ",");
        put_output(&text, &answer->outputs[i]);
    }
    strbuf_put(&text, "]}");
    *ret_json_size = text.size;
    size_t binary = 0;
    for (size_t i = 0; i < answer->output_count; i++)
        binary += answer->outputs[i].binary ? binary_size(&answer->outputs[i]) : 0;
    (void)strbuf_room(&text, binary); /* reserves once, because growing copies the text */
    for (size_t i = 0; i < answer->output_count; i++) {
        if (!answer->outputs[i].binary)
            continue;
        *ret_binary = true;
        put_binary(&text, &answer->outputs[i]);
    }
    return strbuf_finish(&text, ret_size);
}

/* ---- messages ---- */

static size_t put_varint(uint8_t *at, uint64_t value)
{
    size_t count = 0;
    for (; value >= 0x80; value >>= 7)
        at[count++] = (uint8_t)(value | 0x80);
    at[count++] = (uint8_t)value;
    return count;
}

void strbuf_varint(struct strbuf *to, uint64_t value)
{
    char *room = strbuf_room(to, V2_STREAM_HEAD);
    if (room)
        to->size += put_varint((uint8_t *)room, value);
}

static void add_head(struct strbuf *to, unsigned number, size_t size)
{
    strbuf_varint(to, number << 3 | 2);
    strbuf_varint(to, size);
}

void strbuf_field(struct strbuf *to, unsigned number, const char *bytes, size_t size)
{
    add_head(to, number, size);
    strbuf_add(to, bytes, size);
}

void strbuf_inner(struct strbuf *to, unsigned number, struct strbuf *inner)
{
    strbuf_field(to, number, inner->data, inner->size);
    to->failed |= inner->failed;
    free(inner->data);
}

size_t v2_stream_head(bool is_error, size_t size, uint8_t head[static V2_STREAM_HEAD])
{
    head[0] = (is_error ? 1 : 2) << 3 | 2;
    return 1 + put_varint(head + 1, size);
}

/* proto3 leaves out empty texts. */
static void add_text(struct strbuf *to, unsigned number, const char *text)
{
    if (text && *text)
        strbuf_field(to, number, text, strlen(text));
}

static void add_output(struct strbuf *to, const struct v2_answer_output *output)
{
    struct strbuf inner = {0}, dims = {0};
    add_text(&inner, 1, output->name);
    add_text(&inner, 2, datatype_of(output));
    for (int d = 0; d < output->shape.rank; d++)
        strbuf_varint(&dims, (uint64_t)output->shape.dims[d]);
    if (output->shape.rank > 0)
        strbuf_inner(&inner, 3, &dims);
    strbuf_inner(to, 5, &inner);
}

char *v2_answer_message(const struct v2_answer *answer, size_t *ret_size)
{
    struct strbuf text = {0};
    size_t raw = 0;
    add_text(&text, 1, answer->model);
    add_text(&text, 2, answer->version);
    add_text(&text, 3, answer->id);
    for (size_t i = 0; i < answer->output_count; i++)
        add_output(&text, &answer->outputs[i]);
    for (size_t i = 0; i < answer->output_count; i++)
        raw += V2_STREAM_HEAD + binary_size(&answer->outputs[i]);
    (void)strbuf_room(&text, raw); /* reserves once, because growing copies the text */
    for (size_t i = 0; i < answer->output_count; i++) {
        add_head(&text, 6, binary_size(&answer->outputs[i]));
        put_binary(&text, &answer->outputs[i]);
    }
    return strbuf_finish(&text, ret_size);
}

size_t v2_number_most(enum dtype dtype)
{
    if (dtype == DTYPE_F64)
        return sizeof "-2.2250738585072014e-308";
    if (dtype_is_float(dtype))
        return FLOAT_MOST + 1;
    return dtype_size(dtype) == 8 ? sizeof "-9223372036854775808" : sizeof "-2147483648";
}
