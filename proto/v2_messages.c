/* Reads the Open Inference Protocol's gRPC messages (grpc_service.proto) with protobuf-c.
 * v2_answer.c writes answers, v2_documents.c documents. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/grpc_service.pb-c.h"
#include "proto/v2.h"

/* ---- memory of unpacked messages ---- */

#define CHARGE_STEP   ((size_t)16 << 10)
#define BLOCK_BYTES   ((size_t)32) /* overhead of each allocation */
#define SMALL_MESSAGE ((size_t)4 << 20)

struct message_memory {
    v2_charge *charge; /* NULL: memory is limited to `left` */
    void *context;
    size_t left; /* charged but not used */
    struct error *err;
    bool failed;
};

static enum status charge_more(struct message_memory *memory, size_t bytes)
{
    const size_t step = bytes > CHARGE_STEP ? bytes : CHARGE_STEP;
    if (bytes <= memory->left)
        return STATUS_OK;
    if (!memory->charge)
        return error_set(
            memory->err, STATUS_TOO_LARGE,
            "the message has too many fields; unpacked it would take more than %zu bytes",
            SMALL_MESSAGE);
    TRY(memory->charge(memory->context, step, memory->err));
    memory->left = step;
    return STATUS_OK;
}

static void *message_alloc(void *context, size_t size)
{
    struct message_memory *memory = context;
    const size_t bytes = size_sum(size, BLOCK_BYTES);
    if (memory->failed)
        return NULL;
    memory->failed = charge_more(memory, bytes) != STATUS_OK;
    void *block = memory->failed ? NULL : malloc(size ? size : 1);
    if (block) {
        memory->left -= bytes;
    } else if (!memory->failed) {
        memory->failed = true;
        error_no_memory(memory->err, "for a request");
    }
    return block;
}

static void message_free(void *context, void *block)
{
    (void)context;
    free(block);
}

/* Unpacks a message; NULL after an error. Free it by protobuf_c_message_free_unpacked(…, NULL). */
static void *unpack(const ProtobufCMessageDescriptor *type, const uint8_t *message, size_t size,
                    struct message_memory *memory, struct error *err)
{
    ProtobufCAllocator allocator = {message_alloc, message_free, memory};
    memory->err = err;
    void *unpacked =
        protobuf_c_message_unpack(type, &allocator, size, message ? message : (const uint8_t *)"");
    if (!unpacked && !memory->failed)
        error_set(err, STATUS_INVALID,
                  "the message is not a valid %s: its bytes are malformed or cut off",
                  type->short_name);
    return unpacked;
}

static void message_done(void *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

/* ---- inference: the request ---- */

struct v2_unpacking {
    const Inference__ModelInferRequest *message;
    struct v2_request *request;
    struct message_memory *memory;
    struct error *err;
};

static enum status parameter_number(const Inference__ParameterEntry *entry, int64_t *ret,
                                    struct error *err)
{
    const Inference__InferParameter *value = entry->value;
    int64_t number = -1;
    if (value &&
        value->parameter_choice_case == INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM)
        number = value->int64_param;
    else if (value &&
             value->parameter_choice_case ==
                 INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM &&
             value->uint64_param <= INT64_MAX)
        number = (int64_t)value->uint64_param;
    if (number < 0)
        return error_set(err, STATUS_INVALID,
                         "parameter '%.40s' must be an int64_param or uint64_param of 0 or more",
                         entry->key);
    *ret = number;
    return STATUS_OK;
}

static enum status refuse_shared_memory(const char *name, Inference__ParameterEntry *const *entries,
                                        size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        if (!strncmp(entries[i]->key, "shared_memory", 13))
            return error_set(err, STATUS_INVALID,
                             "'%.80s': shared memory is not supported; send tensors in the message",
                             name);
    return STATUS_OK;
}

/* The field of InferTensorContents for a datatype. */
struct typed_contents {
    void *data;
    size_t count, width; /* width: bytes of an element; 0: the datatype has no field */
    bool is_signed;
};

static struct typed_contents typed_contents(const Inference__InferTensorContents *c,
                                            enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BOOL:
        return (struct typed_contents){c->bool_contents, c->n_bool_contents,
                                       sizeof *c->bool_contents, true};
    case DTYPE_I8:
    case DTYPE_I16:
    case DTYPE_I32:
        return (struct typed_contents){c->int_contents, c->n_int_contents, 4, true};
    case DTYPE_I64:
        return (struct typed_contents){c->int64_contents, c->n_int64_contents, 8, true};
    case DTYPE_U8:
    case DTYPE_U16:
    case DTYPE_U32:
        return (struct typed_contents){c->uint_contents, c->n_uint_contents, 4, false};
    case DTYPE_U64:
        return (struct typed_contents){c->uint64_contents, c->n_uint64_contents, 8, false};
    case DTYPE_F32:
        return (struct typed_contents){c->fp32_contents, c->n_fp32_contents, 4, true};
    case DTYPE_F64:
        return (struct typed_contents){c->fp64_contents, c->n_fp64_contents, 8, true};
    case DTYPE_NONE:
    case DTYPE_F16:
    case DTYPE_BF16:
        break;
    }
    return (struct typed_contents){NULL, 0, 0, false};
}

/* Narrows 32-bit elements to 8 or 16 bits, in place. */
static enum status narrow(const struct v2_input *input, const struct typed_contents *from,
                          struct error *err)
{
    const size_t width = dtype_size(input->dtype);
    const int bits = (int)(8 * width), sign = from->is_signed && input->dtype != DTYPE_BOOL;
    const int64_t most = (INT64_C(1) << (bits - sign)) - 1, least = sign ? -most - 1 : 0;
    uint8_t *bytes = from->data;
    for (size_t i = 0; i < from->count; i++) {
        int32_t word;
        memcpy(&word, bytes + 4 * i, sizeof word);
        const int64_t value = from->is_signed ? word : (int64_t)(uint32_t)word;
        if (value < least || value > most)
            return error_set(err, STATUS_INVALID, "input '%.80s': %lld does not fit %s",
                             input->name, (long long)value, input->datatype);
        memcpy(bytes + width * i, &value, width);
    }
    return STATUS_OK;
}

static enum status wrong_count(const struct v2_input *input, size_t count, struct error *err)
{
    return error_set(
        err, STATUS_INVALID,
        "input '%.80s' of datatype %s has %zu elements in its contents, but its shape needs %zu",
        input->name, input->datatype, count, input->count);
}

/* Makes bytes_contents the elements of an input. */
static enum status take_texts(struct v2_unpacking *u, const Inference__InferTensorContents *c,
                              struct v2_input *input)
{
    if (c->n_bytes_contents != input->count)
        return wrong_count(input, c->n_bytes_contents, u->err);
    if (u->request->text)
        return error_set(u->err, STATUS_INVALID, "only one input may have bytes_contents");
    struct v2_bytes *elements =
        message_alloc(u->memory, size_product(input->count, sizeof *elements));
    if (!elements)
        return u->err->status;
    u->request->text = elements;
    input->elements = elements;
    for (size_t i = 0; i < input->count; i++) {
        const ProtobufCBinaryData *element = &c->bytes_contents[i];
        elements[i] =
            (struct v2_bytes){element->len ? element->data : (const uint8_t *)"", element->len};
    }
    return STATUS_OK;
}

static enum status take_contents(struct v2_unpacking *u, const Inference__InferTensorContents *c,
                                 struct v2_input *input)
{
    Inference__InferTensorContents none;
    inference__infer_tensor_contents__init(&none);
    c = c ? c : &none;
    if (input->dtype == DTYPE_NONE)
        return take_texts(u, c, input);
    const struct typed_contents from = typed_contents(c, input->dtype);
    if (!from.width)
        return error_set(u->err, STATUS_INVALID,
                         "input '%.80s': %s has no field in contents; use raw_input_contents",
                         input->name, input->datatype);
    if (from.count != input->count)
        return wrong_count(input, from.count, u->err);
    if (from.width != dtype_size(input->dtype))
        TRY(narrow(input, &from, u->err));
    input->binary = from.data;
    input->binary_size = from.count * dtype_size(input->dtype);
    return STATUS_OK;
}

/* `raw` is the tensor's entry of raw_input_contents; NULL if the message has none. */
static enum status take_input(struct v2_unpacking *u, const Inference__InferInputTensor *from,
                              const ProtobufCBinaryData *raw, struct v2_input *input)
{
    input->name = from->name;
    input->datatype = from->datatype;
    TRY(refuse_shared_memory(from->name, from->parameters, from->n_parameters, u->err));
    if (from->n_shape > TENSOR_MAX_RANK)
        return error_set(u->err, STATUS_INVALID, "input '%.80s' has more than %d dimensions",
                         input->name, TENSOR_MAX_RANK);
    input->shape.rank = (int)from->n_shape;
    for (size_t d = 0; d < from->n_shape; d++) {
        if (from->shape[d] < 0 || from->shape[d] > INT32_MAX)
            return error_set(u->err, STATUS_INVALID,
                             "a dimension of '%.80s' must be a whole number from 0 to %d",
                             input->name, INT32_MAX);
        input->shape.dims[d] = from->shape[d];
    }
    TRY(v2_input_check(input, u->err));
    if (raw) {
        input->binary = raw->data;
        input->binary_size = raw->len;
    } else {
        TRY(take_contents(u, from->contents, input));
    }
    const size_t wanted = input->count * dtype_size(input->dtype);
    if (input->dtype != DTYPE_NONE && input->binary_size != wanted)
        return error_set(u->err, STATUS_INVALID,
                         "input '%.80s' has %zu bytes in raw_input_contents, but its shape and "
                         "datatype %s make %zu",
                         input->name, input->binary_size, input->datatype, wanted);
    if (!input->binary && !input->elements)
        input->binary = (const uint8_t *)""; /* NULL means another form */
    return STATUS_OK;
}

static enum status take_output(struct v2_unpacking *u,
                               const Inference__InferRequestedOutputTensor *from,
                               struct v2_output *output)
{
    *output = (struct v2_output){.name = from->name, .binary = true};
    TRY(refuse_shared_memory(from->name, from->parameters, from->n_parameters, u->err));
    for (size_t i = 0; i < from->n_parameters; i++) {
        int64_t classes;
        if (strcmp(from->parameters[i]->key, "classification") != 0)
            continue;
        TRY(parameter_number(from->parameters[i], &classes, u->err));
        output->classification = classes > INT32_MAX ? INT32_MAX : (size_t)classes;
    }
    return STATUS_OK;
}

static enum status take_parameters(struct v2_unpacking *u)
{
    const Inference__ModelInferRequest *message = u->message;
    for (size_t i = 0; i < message->n_parameters; i++) {
        if (!strcmp(message->parameters[i]->key, "priority"))
            TRY(parameter_number(message->parameters[i], &u->request->priority, u->err));
        else if (!strcmp(message->parameters[i]->key, "timeout"))
            TRY(parameter_number(message->parameters[i], &u->request->timeout_us, u->err));
        else if (!strcmp(message->parameters[i]->key, "track"))
            return error_no_tracks("V2", u->err);
    }
    return STATUS_OK;
}

static enum status take_message(struct v2_unpacking *u)
{
    const Inference__ModelInferRequest *message = u->message;
    struct v2_request *request = u->request;
    const size_t raw = message->n_raw_input_contents;
    request->model = message->model_name;
    request->version = message->model_version;
    request->id = message->id[0] ? message->id : NULL;
    request->default_output.binary = true;
    if (message->n_inputs > V2_MAX_TENSORS || message->n_outputs > V2_MAX_TENSORS)
        return error_set(u->err, STATUS_INVALID, "a request has at most %d inputs and outputs",
                         V2_MAX_TENSORS);
    if (raw && raw != message->n_inputs)
        return error_set(
            u->err, STATUS_INVALID,
            "there are %zu raw_input_contents for %zu inputs; send one for each, or none", raw,
            message->n_inputs);
    TRY(take_parameters(u));
    request->inputs = alloc_array(message->n_inputs, sizeof *request->inputs);
    request->outputs = alloc_array(message->n_outputs, sizeof *request->outputs);
    TRY(check_memory(request->inputs && request->outputs, "for a request", u->err));
    for (size_t i = 0; i < message->n_inputs; i++)
        TRY(take_input(u, message->inputs[i], raw ? &message->raw_input_contents[i] : NULL,
                       &request->inputs[request->input_count++]));
    for (size_t i = 0; i < message->n_outputs; i++)
        TRY(take_output(u, message->outputs[i], &request->outputs[request->output_count++]));
    return STATUS_OK;
}

enum status v2_request_unpack(const uint8_t *message, size_t size, v2_charge *charge, void *context,
                              struct v2_request **ret, struct error *err)
{
    struct message_memory memory = {.charge = charge, .context = context};
    struct v2_request *request = *ret = calloc(1, sizeof *request);
    TRY(check_memory(request, "for a request", err));
    request->free_message = message_done;
    request->message =
        unpack(&inference__model_infer_request__descriptor, message, size, &memory, err);
    struct v2_unpacking unpacking = {request->message, request, &memory, err};
    return request->message ? take_message(&unpacking) : err->status;
}

/* ---- small requests ---- */

enum status v2_index_unpack(const uint8_t *message, size_t size, bool *ret_ready_only,
                            struct error *err)
{
    struct message_memory memory = {.left = SMALL_MESSAGE};
    Inference__RepositoryIndexRequest *request =
        unpack(&inference__repository_index_request__descriptor, message, size, &memory, err);
    if (!request)
        return err->status;
    *ret_ready_only = request->ready;
    message_done(request);
    return STATUS_OK;
}

static enum status copy_name(const char *what, const char *from, char *to, size_t capacity,
                             struct error *err)
{
    const size_t length = strlen(from);
    if (length >= capacity)
        return error_set(err, STATUS_NOT_FOUND, "there is no model with a %s of %zu bytes", what,
                         length);
    memcpy(to, from, length + 1);
    return STATUS_OK;
}

enum status v2_copy_names(const char *model, const char *version, char ret_model[static 128],
                          char ret_version[static 32], struct error *err)
{
    TRY(copy_name("name", model, ret_model, 128, err));
    return copy_name("version", version, ret_version, 32, err);
}

enum status v2_named_unpack(const uint8_t *message, size_t size, char ret_model[static 128],
                            char ret_version[static 32], struct error *err)
{
    struct message_memory memory = {.left = SMALL_MESSAGE};
    Inference__ModelReadyRequest *request =
        unpack(&inference__model_ready_request__descriptor, message, size, &memory, err);
    if (!request)
        return err->status;
    enum status status =
        v2_copy_names(request->name, request->version, ret_model, ret_version, err);
    message_done(request);
    return status;
}

enum status v2_repository_unpack(const uint8_t *message, size_t size, char ret_model[static 128],
                                 bool *ret_overrides, struct error *err)
{
    struct message_memory memory = {.left = SMALL_MESSAGE};
    Inference__RepositoryModelLoadRequest *request =
        unpack(&inference__repository_model_load_request__descriptor, message, size, &memory, err);
    if (!request)
        return err->status;
    *ret_overrides = false;
    for (size_t i = 0; i < request->n_parameters; i++)
        *ret_overrides |= !strcmp(request->parameters[i]->key, "config") ||
                          !strncmp(request->parameters[i]->key, "file:", 5);
    enum status status = copy_name("name", request->model_name, ret_model, 128, err);
    message_done(request);
    return status;
}

/* ---- errors ---- */

static char *sentence_alone(int http, const char *sentence, const char *code)
{
    (void)http, (void)code;
    return strdup(sentence);
}

const struct dialect dialect_grpc = {.name = "gRPC", .write_error = sentence_alone};
