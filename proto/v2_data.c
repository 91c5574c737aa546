/* Reads the "data" of tensors: numbers and texts, from JSON and from binary.
 *
 * A tensor of 224 x 224 x 3 numbers is a megabyte of digits; a tree of these numbers would be ten
 * megabytes. So the text is read once, without a tree: each scalar is stored in the tensor at once.
 * Nested and flat arrays are equivalent, as in the protocol. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/base/text.h"
#include "proto/json_extract.h"
#include "proto/v2.h"

/* ---- storing ---- */

/* Refuses the value that begins at `start`. `most`: the largest number of a float type that the
 * value overflows, as text; otherwise NULL. */
static enum status error_value(const struct json_scan *s, size_t start, enum dtype dtype,
                               const char *most)
{
    size_t length = s->at - start < 40 ? s->at - start : 40;
    return error_set(s->err, STATUS_INVALID,
                     most ? "%.*s is larger than the largest number of %s, %s"
                          : "%.*s is not a valid %s",
                     (int)length, s->text + start, dtype_oip_name(dtype), most);
}

/* Stores an integer or a boolean; false if the dtype cannot hold the number. */
static bool store_integer(struct json_number number, enum dtype dtype, void *dst, size_t i)
{
    const size_t width = dtype_size(dtype);
    const bool is_signed =
        dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
    const uint64_t most = dtype == DTYPE_BOOL ? 1 : UINT64_MAX >> (64 - 8 * width + is_signed);
    const uint64_t limit = !number.negative ? most : is_signed ? most + 1 : 0;
    const uint64_t value = number.negative ? 0 - number.magnitude : number.magnitude;
    if (!number.is_integer || number.magnitude > limit)
        return false;
    if (width == 1)
        ((uint8_t *)dst)[i] = (uint8_t)value;
    else if (width == 2)
        ((uint16_t *)dst)[i] = (uint16_t)value;
    else if (width == 4)
        ((uint32_t *)dst)[i] = (uint32_t)value;
    else
        ((uint64_t *)dst)[i] = value;
    return true;
}

static enum status store_number(const struct json_scan *s, size_t start, struct json_number number,
                                enum dtype dtype, void *dst, size_t i)
{
    if (dtype == DTYPE_F32) {
        ((float *)dst)[i] = (float)number.value;
        return isinf(((float *)dst)[i]) ? error_value(s, start, dtype, "3.4e38") : STATUS_OK;
    }
    if (dtype == DTYPE_F64) {
        ((double *)dst)[i] = number.value;
        return isinf(number.value) ? error_value(s, start, dtype, "1.8e308") : STATUS_OK;
    }
    if (dtype == DTYPE_F16 || dtype == DTYPE_BF16 || dtype == DTYPE_NONE)
        return error_set(s->err, STATUS_INVALID, "%s has no JSON form, send it as binary data",
                         dtype_oip_name(dtype));
    return store_integer(number, dtype, dst, i) ? STATUS_OK : error_value(s, start, dtype, NULL);
}

static enum status read_scalar(struct json_scan *s, enum dtype dtype, void *dst, size_t i)
{
    const size_t start = s->at;
    const char first = json_peek(s);
    const bool is_word = first == 't' || first == 'f';
    struct json_number number = {.is_integer = true, .magnitude = first == 't'};
    TRY(is_word ? json_scan_scalar(s) : json_scan_number(s, &number));
    return is_word && dtype != DTYPE_BOOL ? error_value(s, start, dtype, NULL)
                                          : store_number(s, start, number, dtype, dst, i);
}

/* ---- sequences of scalars ---- */

/* Moves to the next scalar, over brackets and commas. *ret_done: the array has ended. */
static enum status next_scalar(struct json_scan *s, bool *ret_done)
{
    bool more = true;
    if (s->at > 0)
        TRY(json_scan_after_value(s, &more));
    while (more) {
        s->at = text_skip_blanks(s->text, s->at, s->size);
        *ret_done = false;
        if (json_peek(s) != '[')
            return s->depth > 0 ? STATUS_OK : json_scan_error(s, "'['");
        if (s->depth == s->limits->max_depth)
            return error_set(s->err, STATUS_INVALID,
                             "byte %zu of its data begins an array more than %zu deep; nest as the "
                             "shape does, within --max-json-depth, or send a flat array",
                             s->at, s->depth);
        TRY(json_scan_open(s));
        s->at = text_skip_blanks(s->text, s->at, s->size);
        if (json_peek(s) != ']')
            continue;
        s->at++;
        s->depth--;
        TRY(json_scan_after_value(s, &more));
    }
    s->at = text_skip_blanks(s->text, s->at, s->size);
    *ret_done = true;
    return s->at == s->size ? STATUS_OK : json_scan_error(s, "the end of the data");
}

static enum status wrong_count(const struct v2_input *input, size_t found, bool more,
                               struct error *err)
{
    return error_set(err, STATUS_INVALID, "it has %s %zu elements of data, but its shape %s is %zu",
                     more ? "more than" : "only", found, SHAPE_STRING(&input->shape), input->count);
}

/* Reads the scalars of input->json: numbers into `dst`, or else strings, which become part of the
 * request's `tree`. */
static enum status read_scalars(const struct v2_input *input, void *dst, cJSON *tree,
                                struct v2_bytes *ret, struct error *err)
{
    const struct json_limits limits = {.max_depth = input->max_nesting};
    struct json_scan s = {
        .text = input->json, .size = input->json_size, .limits = &limits, .err = err};
    size_t i = 0;
    for (bool done;; i++) {
        TRY(next_scalar(&s, &done));
        if (done)
            return i == input->count ? STATUS_OK : wrong_count(input, i, false, err);
        if (i == input->count)
            return wrong_count(input, i, true, err);
        if (dst) {
            TRY(read_scalar(&s, input->dtype, dst, i));
            continue;
        }
        const size_t start = s.at;
        if (json_peek(&s) != '"')
            return json_scan_error(&s, "a string in quotes, as BYTES are in JSON,");
        TRY(json_scan_scalar(&s));
        cJSON *text = cJSON_ParseWithLength(s.text + start, s.at - start);
        TRY(check_memory(text, "for a request", err));
        cJSON_AddItemToArray(tree, text);
        ret[i] = (struct v2_bytes){(uint8_t *)text->valuestring, strlen(text->valuestring)};
    }
}

enum status v2_read_numbers(const struct v2_input *input, void *dst, struct error *err)
{
    return read_scalars(input, dst, NULL, NULL, err) == STATUS_OK
               ? STATUS_OK
               : error_prefix(err, "input '%.80s'", input->name);
}

/* ---- BYTES ---- */

static enum status read_elements(const struct v2_input *input, struct v2_bytes *ret,
                                 struct error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < input->count; i++) {
        const uint8_t *p = input->binary + at;
        size_t left = input->binary_size - at;
        uint32_t length = 0;
        if (left >= sizeof length)
            memcpy(&length, p, sizeof length); /* little-endian */
        if (left < 4 || length > left - 4)
            return error_set(
                err, STATUS_INVALID,
                "input '%.80s': element %zu of its BYTES does not fit into the remaining %zu "
                "bytes; write the length of each element before it, as 4 bytes little-endian",
                input->name, i, left);
        ret[i] = (struct v2_bytes){p + 4, length};
        at += 4 + (size_t)length;
    }
    if (at != input->binary_size)
        return error_set(err, STATUS_INVALID,
                         "input '%.80s': %zu byte%s left over after its %zu element%s", input->name,
                         input->binary_size - at, input->binary_size - at == 1 ? " is" : "s are",
                         input->count, input->count == 1 ? "" : "s");
    return STATUS_OK;
}

enum status v2_read_bytes(const struct v2_request *request, const struct v2_input *input,
                          bool (*is_bare)(const uint8_t *data, size_t size), struct v2_bytes *ret,
                          struct error *err)
{
    if (input->elements) {
        memcpy(ret, input->elements, input->count * sizeof *ret);
        return STATUS_OK;
    }
    if (input->binary && input->count == 1 && is_bare &&
        is_bare(input->binary, input->binary_size)) {
        ret[0] = (struct v2_bytes){input->binary, input->binary_size};
        return STATUS_OK;
    }
    if (input->binary)
        return read_elements(input, ret, err);
    return read_scalars(input, NULL, request->tree, ret, err) == STATUS_OK
               ? STATUS_OK
               : error_prefix(err, "input '%.80s'", input->name);
}
