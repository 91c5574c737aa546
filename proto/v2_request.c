/* Parses a request's JSON in two parts: the small description of the tensors becomes a tree; the
 * values of "data", which may be megabytes, are only extracted here (v2_data.c reads them). */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/json_extract.h"
#include "proto/v2.h"

/* ---- members ---- */

static enum status read_size(const cJSON *item, const char *what, const char *name, int64_t most,
                             int64_t *ret, struct error *err)
{
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(value >= 0) || value > (double)most || floor(value) != value)
        return error_set(err, STATUS_INVALID, "%s of '%.80s' must be a whole number from 0 to %lld",
                         what, name, (long long)most);
    *ret = (int64_t)value;
    return STATUS_OK;
}

static enum status read_bool(const cJSON *item, const char *what, bool *ret, struct error *err)
{
    if (!cJSON_IsBool(item))
        return error_set(err, STATUS_INVALID, "parameter \"%s\" must be true or false", what);
    *ret = cJSON_IsTrue(item);
    return STATUS_OK;
}

/* Checks that "parameters" is an object: elements of an array have no names. */
static enum status check_parameters(const cJSON *parameters, struct error *err)
{
    if (parameters && !cJSON_IsObject(parameters))
        return error_set(err, STATUS_INVALID, "\"parameters\" must be an object");
    return STATUS_OK;
}

static enum dtype dtype_of_word(const char *word)
{
#define MATCH(name, number, bytes, onnx, oip)                                                      \
    if (!strcmp(word, oip))                                                                        \
        return DTYPE_##name;
    DTYPE_LIST(MATCH)
#undef MATCH
    return DTYPE_NONE;
}

enum status v2_input_check(struct v2_input *input, struct error *err)
{
    input->dtype = dtype_of_word(input->datatype);
    if (input->dtype == DTYPE_NONE && strcmp(input->datatype, "BYTES") != 0)
        return error_set(err, STATUS_INVALID, "input '%.80s': unknown datatype '%.40s'",
                         input->name, input->datatype);
    enum dtype sized = input->dtype == DTYPE_NONE ? DTYPE_U8 : input->dtype;
    if (shape_check(&input->shape, sized, &input->count, NULL, err) != STATUS_OK)
        return error_set(err, STATUS_INVALID, "input '%.80s': its shape is too large", input->name);
    return STATUS_OK;
}

static enum status read_shape(const cJSON *list, struct v2_input *input, struct error *err)
{
    if (!cJSON_IsArray(list))
        return error_set(err, STATUS_INVALID, "input '%.80s' has no array \"shape\"", input->name);
    input->shape = (struct shape){0, {0}};
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (input->shape.rank == TENSOR_MAX_RANK)
            return error_set(err, STATUS_INVALID, "input '%.80s' has more than %d dimensions",
                             input->name, TENSOR_MAX_RANK);
        TRY(read_size(item, "a dimension", input->name, INT32_MAX,
                      &input->shape.dims[input->shape.rank], err));
        input->shape.rank++;
    }
    return STATUS_OK;
}

size_t v2_max_nesting(const struct shape *shape, size_t outer, const struct json_limits *limits)
{
    size_t rank = shape->rank > 1 ? (size_t)shape->rank : 1;
    size_t left = limits->max_depth > outer ? limits->max_depth - outer : 0;
    return rank < left ? rank : left;
}

struct v2_reading {
    struct v2_request *request;
    const struct json_limits *limits;
    const struct json_span *spans;
    size_t next_span;
    const uint8_t *binary; /* the binary data that is not read yet */
    size_t binary_left;
    struct error *err;
};

static enum status take_binary(struct v2_reading *r, struct v2_input *input, const cJSON *size)
{
    int64_t bytes = 0;
    size_t wanted = input->count * dtype_size(input->dtype);
    TRY(read_size(size, "binary_data_size", input->name, INT32_MAX, &bytes, r->err));
    if ((size_t)bytes > r->binary_left)
        return error_set(r->err, STATUS_INVALID,
                         "input '%.80s' has binary_data_size %lld, but only %zu bytes are left in "
                         "the body",
                         input->name, (long long)bytes, r->binary_left);
    if (input->dtype != DTYPE_NONE && (size_t)bytes != wanted)
        return error_set(r->err, STATUS_INVALID,
                         "input '%.80s' has %lld bytes of binary data, but its shape and datatype "
                         "%s make %zu",
                         input->name, (long long)bytes, input->datatype, wanted);
    input->binary = r->binary;
    input->binary_size = (size_t)bytes;
    r->binary += bytes;
    r->binary_left -= (size_t)bytes;
    return STATUS_OK;
}

static enum status take_data(struct v2_reading *r, struct v2_input *input, bool has_data)
{
    if (!has_data)
        return error_set(r->err, STATUS_INVALID,
                         "input '%.80s' has neither the array \"data\" nor binary_data_size",
                         input->name);
    if (input->dtype == DTYPE_F16 || input->dtype == DTYPE_BF16)
        return error_set(r->err, STATUS_INVALID,
                         "input '%.80s': %s has no JSON form, send it as binary data", input->name,
                         input->datatype);
    return STATUS_OK;
}

static enum status read_input(struct v2_reading *r, const cJSON *object, struct v2_input *input)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(object, "name");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(object, "datatype");
    const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(object, "parameters");
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(parameters, "binary_data_size");
    TRY(check_parameters(parameters, r->err));
    const cJSON *data = NULL, *member;
    cJSON_ArrayForEach(member, object)
    {
        if (strcmp(member->string, "data") != 0)
            continue;
        if (data || r->next_span >= V2_MAX_TENSORS || !r->spans[r->next_span].text ||
            !cJSON_IsNumber(member))
            return error_set(r->err, STATUS_INVALID, "\"data\" of an input must be an array, once");
        data = member;
        input->json = r->spans[r->next_span].text;
        input->json_size = r->spans[r->next_span++].size;
    }
    if (!cJSON_IsString(name) || !cJSON_IsString(type))
        return error_set(r->err, STATUS_INVALID,
                         "every input needs the strings \"name\" and \"datatype\"");
    input->name = name->valuestring;
    input->datatype = type->valuestring;
    if (cJSON_GetObjectItemCaseSensitive(parameters, "shared_memory_region"))
        return error_set(r->err, STATUS_INVALID,
                         "input '%.80s': shared memory is not supported; send the tensor in "
                         "the body",
                         input->name);
    TRY(read_shape(cJSON_GetObjectItemCaseSensitive(object, "shape"), input, r->err));
    TRY(v2_input_check(input, r->err));
    input->max_nesting = v2_max_nesting(&input->shape, 3, r->limits);
    if (size) {
        input->json = NULL;
        return take_binary(r, input, size);
    }
    return take_data(r, input, data != NULL);
}

static enum status read_output(struct v2_reading *r, const cJSON *object, struct v2_output *output)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(object, "name");
    const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(object, "parameters");
    if (!cJSON_IsString(name))
        return error_set(r->err, STATUS_INVALID, "every output needs the string \"name\"");
    output->name = name->valuestring;
    TRY(check_parameters(parameters, r->err));
    const cJSON *parameter;
    cJSON_ArrayForEach(parameter, parameters)
    {
        if (!strcmp(parameter->string, "binary_data")) {
            TRY(read_bool(parameter, "binary_data", &output->binary, r->err));
        } else if (!strcmp(parameter->string, "classification")) {
            int64_t classes = 0;
            TRY(read_size(parameter, "classification", output->name, INT32_MAX, &classes, r->err));
            output->classification = (size_t)classes;
        } else if (!strncmp(parameter->string, "shared_memory", 13)) {
            return error_set(r->err, STATUS_INVALID,
                             "output '%.80s': shared memory is not supported", output->name);
        }
    }
    return STATUS_OK;
}

/* Counts the entries of an array, which must be present. */
static enum status count_list(const cJSON *list, const char *what, size_t *ret, struct error *err)
{
    int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    if (!list)
        return error_set(err, STATUS_INVALID,
                         "\"%s\" is missing; the request is {\"inputs\": [{\"name\": …, \"shape\": "
                         "…, \"datatype\": …, \"data\": …}]}",
                         what);
    if (count < 0 || count > V2_MAX_TENSORS)
        return error_set(err, STATUS_INVALID, "\"%s\" must be an array of at most %d", what,
                         V2_MAX_TENSORS);
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsObject(item))
            return error_set(err, STATUS_INVALID, "every entry of \"%s\" must be an object", what);
    }
    *ret = (size_t)count;
    return STATUS_OK;
}

static enum status read_parameters(struct v2_reading *r, const cJSON *parameters)
{
    struct v2_request *request = r->request;
    TRY(check_parameters(parameters, r->err));
    const cJSON *item;
    cJSON_ArrayForEach(item, parameters)
    {
        if (!strcmp(item->string, "binary_data_output"))
            TRY(read_bool(item, item->string, &request->default_output.binary, r->err));
        else if (!strcmp(item->string, "priority"))
            TRY(read_size(item, "parameter", "priority", INT32_MAX, &request->priority, r->err));
        else if (!strcmp(item->string, "timeout"))
            TRY(read_size(item, "parameter", "timeout", INT64_C(1) << 53, &request->timeout_us,
                          r->err));
        else if (!strcmp(item->string, "track"))
            return error_no_tracks("V2", r->err);
    }
    return STATUS_OK;
}

static enum status read_tree(struct v2_reading *r, const cJSON *root)
{
    struct v2_request *request = r->request;
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(root, "id");
    const cJSON *inputs = cJSON_GetObjectItemCaseSensitive(root, "inputs");
    const cJSON *outputs = cJSON_GetObjectItemCaseSensitive(root, "outputs");
    const cJSON *item;
    if (!cJSON_IsObject(root))
        return error_set(r->err, STATUS_INVALID,
                         "the request must be a JSON object: {\"inputs\": […]}");
    if (id && !cJSON_IsString(id))
        return error_set(r->err, STATUS_INVALID, "\"id\" must be a string");
    request->id = id ? id->valuestring : NULL;
    TRY(read_parameters(r, cJSON_GetObjectItemCaseSensitive(root, "parameters")));
    size_t input_count, output_count = 0;
    TRY(count_list(inputs, "inputs", &input_count, r->err));
    if (outputs)
        TRY(count_list(outputs, "outputs", &output_count, r->err));
    request->inputs = alloc_array(input_count, sizeof *request->inputs);
    request->outputs = alloc_array(output_count, sizeof *request->outputs);
    TRY(check_memory(request->inputs && request->outputs, "for a request", r->err));
    cJSON_ArrayForEach(item, inputs)
        TRY(read_input(r, item, &request->inputs[request->input_count++]));
    cJSON_ArrayForEach(item, outputs)
    {
        struct v2_output *output = &request->outputs[request->output_count++];
        *output = (struct v2_output){.binary = request->default_output.binary};
        TRY(read_output(r, item, output));
    }
    if (r->binary_left > 0)
        return error_set(r->err, STATUS_INVALID,
                         "%zu byte%s left over in the body after the binary data of all inputs",
                         r->binary_left, r->binary_left == 1 ? " is" : "s are");
    return STATUS_OK;
}

static enum status parse_v2_body(const uint8_t *body, size_t size, size_t json_size,
                                 const struct json_limits *limits, struct v2_request *request,
                                 struct json_span *spans, struct error *err)
{
    static const struct extract_rule rule = {3, "inputs", "data"};
    char *rest = request->text = malloc(json_size + 1);
    struct extraction cut = {.rule = &rule, .rest = rest, .spans = spans, .max = V2_MAX_TENSORS};
    TRY(check_memory(rest, "for a request", err));
    TRY(json_extract((const char *)body, json_size, limits, &cut, err));
    request->tree = cJSON_ParseWithLength(rest, cut.rest_size);
    TRY(check_memory(request->tree, "for a request", err));
    free(request->text); /* the tree has copies */
    request->text = NULL;
    struct v2_reading reading = {.request = request,
                                 .limits = limits,
                                 .spans = spans,
                                 .binary = body + json_size,
                                 .binary_left = size - json_size,
                                 .err = err};
    return read_tree(&reading, request->tree);
}

enum status v2_request_parse(const uint8_t *body, size_t size, size_t json_size,
                             const struct json_limits *limits, struct v2_request **ret,
                             struct error *err)
{
    struct v2_request *request = *ret = calloc(1, sizeof *request);
    struct json_span *spans = alloc_array(V2_MAX_TENSORS, sizeof *spans);
    enum status status = request && spans
                             ? parse_v2_body(body, size, json_size, limits, request, spans, err)
                             : error_no_memory(err, "for a request");
    free(spans);
    return status;
}

void v2_request_free(struct v2_request *request)
{
    if (!request)
        return;
    cJSON_Delete(request->tree);
    if (request->free_message)
        request->free_message(request->message);
    for (size_t i = 0; i < request->input_count; i++)
        free(request->inputs[i].numbers);
    FREE_ALL(request->text, request->inputs, request->outputs, request);
}

enum status v2_index_parse(const uint8_t *body, size_t size, const struct json_limits *limits,
                           bool *ret_ready_only, struct error *err)
{
    const char *text = (const char *)body;
    *ret_ready_only = false;
    if (size == 0)
        return STATUS_OK;
    TRY(json_check(text, size, limits, err));
    cJSON *root = cJSON_ParseWithLength(text, size);
    TRY(check_memory(root, "for a request", err));
    const cJSON *ready = cJSON_GetObjectItemCaseSensitive(root, "ready");
    enum status status = STATUS_OK;
    /* Triton's Python client sends "" as JSON. */
    if (!cJSON_IsObject(root) && !cJSON_IsString(root))
        status = error_set(err, STATUS_INVALID, "the body must be empty or {\"ready\": true}");
    else if (ready)
        status = read_bool(ready, "ready", ret_ready_only, err);
    cJSON_Delete(root);
    return status;
}
