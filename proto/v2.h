/* The Open Inference Protocol, version 2, over REST and gRPC (KServe, Triton, OpenVINO Model
 * Server): requests and answers.
 *
 * Sources: open-inference-protocol/specification/protocol/inference_rest.md; Triton's extensions
 * (binary tensor data, classification, statistics, model configuration, model repository). Of gRPC:
 * proto/grpc_service.proto.
 *
 * proto/ knows the wire, not the server: plain descriptions in, malloc'ed text out, as answers.h
 * says. What clients send is hostile: JSON is checked before it becomes a tree, and the numbers of
 * a tensor never become one; they are read from the text straight into the tensor. */
#pragma once

#include "engine/tensor/tensor.h"
#include "proto/json.h"

/* ---- inference: the request ---- */

#define V2_MAX_TENSORS 256 /* inputs, and outputs asked for, of one request */

struct v2_input {
    const char *name;
    const char *datatype;  /* "FP32", "BYTES" …, as the client says */
    enum dtype dtype;      /* DTYPE_NONE: BYTES */
    struct shape shape;    /* went through shape_check for its dtype */
    size_t count;          /* elements */
    const uint8_t *binary; /* of the body, binary_size bytes; NULL: the data is JSON */
    size_t binary_size;
    const char *json; /* the value of "data", of the body, json_size bytes; NULL: binary */
    size_t json_size;
    size_t max_nesting; /* of the arrays in `json`: v2_max_nesting */
};

struct v2_output {
    const char *name;
    bool binary;
    size_t classification; /* the K best classes as text instead of the tensor; 0: the tensor */
};

struct v2_request {
    const char *model, *version; /* NULL: the path of the request names them */
    const char *id;              /* NULL: none */
    struct v2_input *inputs;
    size_t input_count;
    struct v2_output *outputs; /* none: all of them, as default_output says */
    size_t output_count;
    struct v2_output default_output;
    int64_t priority;   /* 1 = highest; 0: not told */
    int64_t timeout_us; /* 0: not told */
    /* Private: what the pointers above point into, beside the body. */
    void *tree, *text, *message;
    void (*free_message)(void *message);
};

/* Reads the JSON of a request, body[0 … json_size), and cuts the binary tensors behind it to
 * pieces. The whole body is JSON where json_size equals size. `body` is borrowed until
 * v2_request_free (NULL is fine). STATUS_INVALID with what is wrong; a datatype nobody knows, FP16
 * or BF16 without binary data (they have no JSON form), sizes that do not add up are refused here;
 * names and shapes are the caller's to compare with the model. */
enum status v2_request_parse(const uint8_t *body, size_t size, size_t json_size,
                             const struct json_limits *limits, struct v2_request **ret,
                             struct error *err) MUST_USE;
void v2_request_free(struct v2_request *request);

/* The same of a ModelInferRequest (gRPC), nothing of which is borrowed. What it takes in memory is
 * asked for first, some kilobytes at a time: a message of n bytes may unpack to 50 n. */
typedef enum status v2_charge(void *context, size_t bytes, struct error *err);
enum status v2_request_unpack(const uint8_t *message, size_t size, v2_charge *charge, void *context,
                              struct v2_request **ret, struct error *err) MUST_USE;

/* For those two: sets dtype and count of an input that has name, datatype and shape. */
enum status v2_input_check(struct v2_input *input, struct error *err) MUST_USE;

/* How deep the arrays of a tensor of this shape may nest that lie `outer` levels deep in a JSON
 * text themselves: as deep as its rank, at least 1 (flat), and within the limits. */
size_t v2_max_nesting(const struct shape *shape, size_t outer, const struct json_limits *limits);

/* Reads the numbers of input->json, nested or flat, in row-major order, into `dst`: exactly
 * input->count elements of input->dtype. STATUS_INVALID names the offset of what is no number of
 * that type, or too many or too few. */
enum status v2_read_numbers(const struct v2_input *input, void *dst, struct error *err) MUST_USE;

/* An element of a BYTES tensor. */
struct v2_bytes {
    const uint8_t *data;
    size_t size;
};

/* The input->count elements of a BYTES input. Binary: each with its length, uint32 little-endian,
 * before it. JSON: strings, decoded into *ret_memory (malloc'ed, the caller frees after use; NULL
 * for binary). A single binary element may come without its length where `is_bare` says so of the
 * data. `ret` has room for input->count. STATUS_INVALID. */
enum status v2_read_bytes(const struct v2_input *input,
                          bool (*is_bare)(const uint8_t *data, size_t size), struct v2_bytes *ret,
                          uint8_t **ret_memory, struct error *err) MUST_USE;

/* ---- inference: the answer ---- */

/* An output: rows of one tensor, or texts. */
struct v2_answer_output {
    const char *name;
    bool binary;
    struct shape shape;               /* of all rows together, or of the texts */
    const struct tensor *const *rows; /* same dtype each; NULL: texts */
    size_t row_count;
    char *const *texts; /* BYTES, shape_count(shape) of them */
};

struct v2_answer {
    const char *model, *version;
    const char *id; /* NULL: none */
    const struct v2_answer_output *outputs;
    size_t output_count;
};

/* The body of an answer; *ret_json_size is the part that is JSON: less than *ret_size when a binary
 * output follows, or has no bytes but was asked for (*ret_binary). Floats are shortest-exact; NaN
 * and infinities, which JSON has no word for, are null. */
char *v2_answer_body(const struct v2_answer *answer, size_t *ret_size, size_t *ret_json_size,
                     bool *ret_binary);

/* A ModelInferResponse; every output is binary. */
char *v2_answer_message(const struct v2_answer *answer, size_t *ret_size);

/* What is before a ModelInferResponse of `size` bytes in a ModelStreamInferResponse, or before the
 * sentence of an error; returns how long that is. */
#define V2_STREAM_HEAD 11
size_t v2_stream_head(bool is_error, size_t size, uint8_t head[static V2_STREAM_HEAD]);

/* Most bytes that an element of `dtype` takes as JSON, with the comma behind it. */
size_t v2_number_most(enum dtype dtype);

/* "0.812345:3:cat": value (six decimals), class, label (may be NULL); malloc'ed. */
char *v2_classification(double value, size_t index, const char *label);

/* ---- documents ---- */

struct v2_tensor {
    const char *name;
    enum dtype dtype;
    struct shape
        shape; /* -1 for the batch, or where it depends on data; rank SHAPE_UNKNOWN: [-1] */
};

struct v2_model {
    const char *name, *version;
    const char *const *versions; /* all that are ready */
    size_t version_count;
    const struct v2_tensor *inputs, *outputs;
    size_t input_count, output_count;
    int max_batch_size; /* 0: no batch dimension; else the shapes begin with it */
    size_t image_input; /* index; SIZE_MAX: none */
    bool channels_last; /* of the image input */
    bool has_labels;    /* of output label_output */
    size_t label_output;
    size_t instance_count;
    const char *instance_kind; /* "KIND_CPU" */
};

struct v2_count {
    uint64_t count, ns;
};

struct v2_batch_stats {
    int batch_size;
    struct v2_count input, infer, output;
};

struct v2_stats {
    const char *name, *version;
    uint64_t last_inference_ms, inference_count, execution_count;
    struct v2_count success, fail, queue, input, infer, output, cache_hit, cache_miss;
    const struct v2_batch_stats *batches;
    size_t batch_count;
    uint64_t memory_bytes;
    const char *memory_type; /* "CPU" */
};

struct v2_index_entry {
    const char *name, *version, *state, *reason;
};

/* Documents: messages for gRPC, JSON otherwise. Texts are malloc'ed; NULL: out of memory. */
char *v2_server_document(bool is_message, const char *name, const char *version, size_t *ret_size);
char *v2_metadata_document(bool is_message, const struct v2_model *model, size_t *ret_size);
char *v2_config_document(bool is_message, const struct v2_model *model, size_t *ret_size);
char *v2_stats_document(bool is_message, const struct v2_stats *stats, size_t count,
                        size_t *ret_size);
char *v2_index_document(bool is_message, const struct v2_index_entry *entries, size_t count,
                        size_t *ret_size);
/* {"name"?, flag: value}: of the live and ready endpoints. */
char *v2_flag_document(bool is_message, const char *name, const char *flag, bool value,
                       size_t *ret_size);

/* The request for the index. JSON is empty, or {"ready": bool}. */
enum status v2_index_parse(const uint8_t *body, size_t size, const struct json_limits *limits,
                           bool *ret_ready_only, struct error *err) MUST_USE;
enum status v2_index_unpack(const uint8_t *message, size_t size, bool *ret_ready_only,
                            struct error *err) MUST_USE;

/* Names of a model. v2_named_unpack() reads the messages of ModelReady, ModelMetadata, ModelConfig
 * and ModelStatistics. STATUS_NOT_FOUND: a name is too long. */
struct v2_named {
    char model[128], version[32]; /* "": none */
};
enum status v2_named_set(struct v2_named *named, const char *model, const char *version,
                         struct error *err) MUST_USE;
enum status v2_named_unpack(const uint8_t *message, size_t size, struct v2_named *ret,
                            struct error *err) MUST_USE;

/* The same of RepositoryModelLoad and RepositoryModelUnload. *ret_overrides: it has a configuration
 * or files of its own. */
enum status v2_repository_unpack(const uint8_t *message, size_t size, struct v2_named *ret,
                                 bool *ret_overrides, struct error *err) MUST_USE;

struct dialect;
extern const struct dialect dialect_grpc; /* errors are plain sentences */
