/* The JSON of KServe's V1 protocol: parses requests; writes classes, rows, model descriptions. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "proto/base64.h"
#include "proto/dialects.h"
#include "proto/json_extract.h"
#include "proto/strbuf.h"
#include "proto/v2.h"
#include "proto/writer.h"

static cJSON *find_base64(cJSON *instance)
{
    static const char *const texts[] = {"b64", "image_bytes", "image", "data", "body"};
    if (cJSON_IsString(instance))
        return instance;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        cJSON *member = cJSON_GetObjectItemCaseSensitive(instance, texts[i]);
        if (cJSON_IsString(member))
            return member;
    }
    cJSON *member;
    cJSON_ArrayForEach(member, instance)
    {
        cJSON *inner = cJSON_GetObjectItemCaseSensitive(member, "b64");
        if (cJSON_IsString(inner))
            return inner;
    }
    return NULL;
}

/* Makes the instances of `list` the elements of the request's input. */
static enum status read_instances(struct v2_request *request, cJSON *list, bool are_texts,
                                  struct error *err)
{
    const size_t count = (size_t)cJSON_GetArraySize(list);
    struct v2_bytes *element = request->text = alloc_array(count, sizeof *element);
    TRY(check_memory(element, "for a request", err));
    request->inputs[0].datatype = "BYTES";
    request->inputs[0].shape = SHAPE((int64_t)count);
    request->inputs[0].elements = element;
    size_t i = 0;
    cJSON *instance;
    cJSON_ArrayForEach(instance, list)
    {
        cJSON *text = find_base64(instance);
        uint8_t *data = text ? (uint8_t *)text->valuestring : NULL;
        size_t size = text ? strlen(text->valuestring) : 0;
        if (!text && are_texts)
            return error_set(err, STATUS_INVALID,
                             "instance %zu is not a text, but the model takes texts: \"a dog\" or "
                             "{\"data\": \"a dog\"}",
                             i);
        if (!text)
            return error_set(err, STATUS_INVALID,
                             "instance %zu is not an image: {\"b64\": \"…\"} or {\"image_bytes\": "
                             "{\"b64\": \"…\"}} hold one",
                             i);
        if (!are_texts &&
            picture_text_decode(text->valuestring, size, &data, &size, err) != STATUS_OK)
            return error_prefix(err, "instance %zu", i);
        element[i++] = (struct v2_bytes){data, size};
    }
    return STATUS_OK;
}

/* Returns the first byte of an array's first element; ']' if the array is empty. */
static char first_byte(const struct json_span *array)
{
    const size_t at = text_skip_blanks(array->text, 1, array->size);
    return at < array->size ? array->text[at] : ']';
}

/* Counts the elements of the outermost array: commas on its level, plus one. */
static size_t count_elements(const struct json_span *array)
{
    size_t depth = 0, count = 1;
    for (size_t i = 0; i < array->size; i++) {
        char byte = array->text[i];
        depth += byte == '[';
        count += byte == ',' && depth == 1;
        depth -= byte == ']' && depth > 0;
    }
    return count;
}

static enum status parse_v1_instances(const char *text, size_t size,
                                      const struct json_limits *limits, bool are_texts,
                                      struct v2_request *request, struct error *err)
{
    static const struct extract_rule rule = {1, NULL, "instances"};
    struct json_span instances = {"[]", 2};
    struct extraction cut = {
        .rule = &rule, .rest = malloc(size + 1), .spans = &instances, .max = 1};
    TRY(check_memory(cut.rest, "for a request", err));
    const enum status status = json_extract(text, size, limits, &cut, err);
    free(cut.rest);
    TRY(status);
    if (cut.count == 0)
        return error_set(err, STATUS_INVALID,
                         "the request must be {\"instances\": […]}, with photos as base64 or with "
                         "numbers");
    if (first_byte(&instances) == ']')
        return error_set(err, STATUS_INVALID, "\"instances\" is empty; send at least one");
    if (!strchr("{\"", first_byte(&instances))) {
        struct v2_input *input = &request->inputs[0];
        input->json = instances.text;
        input->json_size = instances.size;
        input->shape.dims[0] = (int64_t)count_elements(&instances);
        input->max_nesting = v2_max_nesting(&input->shape, 1, limits);
        return STATUS_OK;
    }
    TRY(json_check(text, size, limits, err));
    cJSON *tree = request->tree = cJSON_ParseWithLength(text, size);
    TRY(check_memory(tree, "for a request", err));
    if (cJSON_GetObjectItemCaseSensitive(tree, "track"))
        return error_no_tracks(dialect_v1.name, err);
    return read_instances(request, cJSON_GetObjectItemCaseSensitive(tree, "instances"), are_texts,
                          err);
}

enum status v1_request_parse(const char *text, size_t size, const struct json_limits *limits,
                             const struct v2_input *wanted, bool are_texts, struct v2_request **ret,
                             struct error *err)
{
    struct v2_request *request = *ret = calloc(1, sizeof *request);
    TRY(check_memory(request, "for a request", err));
    struct v2_input *input = request->inputs = alloc_array(1, sizeof *input);
    TRY(check_memory(input, "for a request", err));
    *input = *wanted;
    request->input_count = 1;
    TRY(parse_v1_instances(text, size, limits, are_texts, request, err));
    return v2_input_check(input, err);
}

static void write_classes(struct writer *w, const struct predict_answer *answer)
{
    cJSON *list = write_array(w, w->root, "predictions");
    for (size_t i = 0; i < answer->image_count; i++) {
        const struct answer_image *image = &answer->images[i];
        cJSON *entry = write_object(w, list, NULL);
        cJSON *classes = write_array(w, entry, "classes");
        cJSON *indices = write_array(w, entry, "indices");
        cJSON *probabilities = write_array(w, entry, "probabilities");
        for (size_t k = 0; k < image->prediction_count; k++) {
            const struct answer_prediction *prediction = &image->predictions[k];
            write_text(w, classes, NULL, LABEL_STRING(prediction));
            write_members(w, indices, "%zu", prediction->index);
            write_float(w, probabilities, NULL, prediction->probability);
        }
    }
}

const struct dialect dialect_v1 = {.name = "V1", .write = write_classes};

/* Writes the numbers with brackets around each dimension from `from` on. */
static void put_nested(struct strbuf *text, const struct tensor *tensor, int from)
{
    size_t count = shape_count(&tensor->shape), inner[TENSOR_MAX_RANK + 1];
    int rank = tensor->shape.rank;
    inner[rank] = 1;
    for (int d = rank - 1; d >= 0; d--)
        inner[d] = inner[d + 1] * (size_t)tensor->shape.dims[d];
    if (count == 0)
        strbuf_put(text, "[]");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            strbuf_put(text, ",");
        for (int d = from; d < rank; d++)
            if (i % inner[d] == 0)
                strbuf_put(text, "[");
        strbuf_element(text, tensor, i);
        for (int d = from; d < rank; d++)
            if ((i + 1) % inner[d] == 0)
                strbuf_put(text, "]");
    }
}

char *v1_rows_json(const struct v2_answer *answer, bool has_rows, size_t *ret_size)
{
    const bool are_named = answer->output_count > 1;
    struct strbuf text = {0};
    strbuf_put(&text, "{\"predictions\":[");
    for (size_t r = 0; r < answer->outputs[0].row_count; r++) {
        strbuf_put(&text, r ? "," : "");
        for (size_t o = 0; o < answer->output_count; o++) {
            const struct tensor *tensor = answer->outputs[o].rows[r];
            if (are_named) {
                strbuf_put(&text, o ? "," : "{");
                strbuf_string(&text, answer->outputs[o].name);
                strbuf_put(&text, ":");
            }
            put_nested(&text, tensor, has_rows && tensor->shape.rank > 1 ? 1 : 0);
        }
        strbuf_put(&text, are_named ? "}" : "");
    }
    strbuf_put(&text, "]}\n");
    return strbuf_finish(&text, ret_size);
}
