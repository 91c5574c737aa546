/* The Open Inference Protocol, version 2, over REST and gRPC (KServe, Triton, OpenVINO Model
 * Server): requests and answers.
 *
 * Sources: open-inference-protocol/specification/protocol/inference_rest.md; Triton's extensions
 * (binary tensor data, classification, statistics, model configuration, model repository). For
 * gRPC: proto/grpc_service.proto.
 *
 * proto/ knows wire formats, not the server: functions take plain descriptions and return malloc'ed
 * text, as in answers.h. Input from clients is untrusted: JSON is checked before it becomes a tree.
 * The numbers of a tensor never become a tree; they are read from the text into the tensor. */
#pragma once

#include "engine/tensor/tensor.h"
#include "proto/json.h"

/* ---- inference: the request ---- */

#define V2_MAX_TENSORS 256 /* most inputs, and most requested outputs, of one request */

/* An element of a BYTES tensor. */
struct v2_bytes {
    const uint8_t *data;
    size_t size;
};

struct v2_input {
    const char *name;
    const char *datatype;  /* "FP32", "BYTES" …, from the client */
    enum dtype dtype;      /* DTYPE_NONE: BYTES */
    struct shape shape;    /* checked by shape_check for its dtype */
    size_t count;          /* elements */
    const uint8_t *binary; /* in the body, binary_size bytes; NULL: another form */
    size_t binary_size;
    const struct v2_bytes *elements; /* `count` of them; NULL: another form */
    const char *json; /* the value of "data" in the body, json_size bytes; NULL: another form */
    size_t json_size;
    size_t max_nesting; /* v2_max_nesting() for the arrays in `json` */
    void *numbers;      /* malloc'ed by the caller, or NULL; v2_request_free() frees it */
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
    struct v2_output *outputs; /* empty: all outputs, in the form of default_output */
    size_t output_count;
    struct v2_output default_output;
    int64_t priority;   /* 1 = highest; 0: not given */
    int64_t timeout_us; /* 0: not given */
    /* Private: memory of the pointers above that do not point into the body. */
    void *tree, *text, *message;
    void (*free_message)(void *message);
};

/* Reads the JSON of a request, body[0 … json_size), and splits the binary tensors after it. If
 * json_size equals size, the whole body is JSON. `body` is borrowed until v2_request_free()
 * (accepts NULL), which the caller also calls after a failure. STATUS_INVALID for a malformed
 * request, an unknown datatype, FP16 or BF16 without binary data (they have no JSON form), or
 * inconsistent sizes. The caller compares names and shapes with the model. */
enum status v2_request_parse(const uint8_t *body, size_t size, size_t json_size,
                             const struct json_limits *limits, struct v2_request **ret,
                             struct error *err) MUST_USE;
void v2_request_free(struct v2_request *request);

/* Reads a ModelInferRequest (gRPC) into the same struct; borrows nothing. Charges memory before it
 * allocates it, some kilobytes at a time, because a message of n bytes may unpack to 50 n. */
typedef enum status v2_charge(void *context, size_t bytes, struct error *err);
enum status v2_request_unpack(const uint8_t *message, size_t size, v2_charge *charge, void *context,
                              struct v2_request **ret, struct error *err) MUST_USE;

/* For both forms of request: sets dtype and count of an input whose name, datatype and shape are
 * set. */
enum status v2_input_check(struct v2_input *input, struct error *err) MUST_USE;

/* Returns how deep the arrays of a tensor may be nested in a JSON text in which they start at level
 * `outer`: the rank of `shape`, at least 1 (flat), but no deeper than `limits` allow. */
size_t v2_max_nesting(const struct shape *shape, size_t outer, const struct json_limits *limits);

/* Reads the numbers of input->json, nested or flat, in row-major order, into `dst`: exactly
 * input->count elements of input->dtype. STATUS_INVALID: their number is wrong, or a value is not
 * of that type (with its offset). */
enum status v2_read_numbers(const struct v2_input *input, void *dst, struct error *err) MUST_USE;

/* Reads the input->count elements of a BYTES input into `ret`; they live as long as the request. In
 * binary data each element follows its length, uint32 little-endian. The strings of JSON may be
 * changed in place. A single binary element may lack its length if `is_bare`, unless NULL, returns
 * true for the data. STATUS_INVALID. */
enum status v2_read_bytes(const struct v2_request *request, const struct v2_input *input,
                          bool (*is_bare)(const uint8_t *data, size_t size), struct v2_bytes *ret,
                          struct error *err) MUST_USE;

/* ---- inference: the answer ---- */

/* An output: rows of one tensor, or texts. */
struct v2_answer_output {
    const char *name;
    bool binary;
    struct shape shape;               /* of all rows together, or of the texts */
    const struct tensor *const *rows; /* all of one dtype; NULL: texts */
    size_t row_count;
    char **texts; /* BYTES, shape_count(shape) of them */
};

struct v2_answer {
    const char *model, *version;
    const char *id; /* NULL: none */
    const struct v2_answer_output *outputs;
    size_t output_count;
};

/* Writes the body of an answer. *ret_json_size is the size of its JSON part, less than *ret_size if
 * a binary output follows. *ret_binary: a binary output was requested, even if it has no bytes.
 * Floats have the shortest exact form; NaN and infinities, which JSON lacks, are null. */
char *v2_answer_body(const struct v2_answer *answer, size_t *ret_size, size_t *ret_json_size,
                     bool *ret_binary);

char *v2_answer_message(const struct v2_answer *answer, size_t *ret_size);

/* Writes the bytes that precede a ModelInferResponse of `size` bytes, or an error text, in a
 * ModelStreamInferResponse. Returns their number. */
#define V2_STREAM_HEAD 11
size_t v2_stream_head(bool is_error, size_t size, uint8_t head[static V2_STREAM_HEAD]);

/* Returns the length of the longest element of `dtype` in JSON, with its comma. */
size_t v2_number_most(enum dtype dtype);

/* ---- documents ---- */

enum v2_document {
    V2_SERVER,
    V2_LIVE,
    V2_READY,
    V2_METADATA,
    V2_CONFIG, /* in a message below "config" */
    V2_LABELS, /* never a message */
    V2_STATISTICS,
    V2_INDEX, /* {"models": […]}, of which JSON is the list alone */
};

struct writer;
/* Writes a writer's tree and frees it: as a message for gRPC, whose fields have the names of the
 * tree's members, or else as JSON. malloc'ed; NULL when out of memory. */
char *v2_document(struct writer *w, enum v2_document document, bool is_message, size_t *ret_size);

/* Read a request for the index of the repository. A JSON body may be empty or {"ready": bool}. */
enum status v2_index_parse(const uint8_t *body, size_t size, const struct json_limits *limits,
                           bool *ret_ready_only, struct error *err) MUST_USE;
enum status v2_index_unpack(const uint8_t *message, size_t size, bool *ret_ready_only,
                            struct error *err) MUST_USE;

/* Each writes the model and version that a request names; "": none. STATUS_NOT_FOUND: a name is too
 * long. v2_named_unpack() reads the messages of ModelReady, ModelMetadata, ModelConfig and
 * ModelStatistics; v2_repository_unpack() those of RepositoryModelLoad and RepositoryModelUnload.
 * *ret_overrides: the request has its own configuration or files. */
enum status v2_copy_names(const char *model, const char *version, char ret_model[static 128],
                          char ret_version[static 32], struct error *err) MUST_USE;
enum status v2_named_unpack(const uint8_t *message, size_t size, char ret_model[static 128],
                            char ret_version[static 32], struct error *err) MUST_USE;
enum status v2_repository_unpack(const uint8_t *message, size_t size, char ret_model[static 128],
                                 bool *ret_overrides, struct error *err) MUST_USE;

struct dialect;
extern const struct dialect dialect_grpc; /* errors are plain sentences */

/* ---- V1, the same as TensorFlow Serving's: POST /v1/models/M:predict ---- */

/* Writes {"predictions": [{"classes": [label …], "indices": […], "probabilities": […]} …]}. */
extern const struct dialect dialect_v1;

/* Reads {"instances": […]} into a request with one input. `wanted` has the name, datatype and shape
 * of the model's input; its first dimension becomes the number of rows. If the instances are
 * numbers, `text` is borrowed until v2_request_free(). Otherwise they are elements: photos in
 * base64, or with `are_texts` UTF-8 texts, in one of the forms "…", {"data": "…"} (or "b64",
 * "body", "image", "image_bytes"), or {"b64": "…"} as a member of any name. Errors as
 * v2_request_parse(); malformed base64 is STATUS_INVALID. */
enum status v1_request_parse(const char *text, size_t size, const struct json_limits *limits,
                             const struct v2_input *wanted, bool are_texts, struct v2_request **ret,
                             struct error *err) MUST_USE;

/* Returns {"predictions": [row …]}. A row has the numbers of the output, nested by its shape,
 * without the batch dimension if `has_rows`; with several outputs it is {name: numbers, …}. */
char *v1_rows_json(const struct v2_answer *answer, bool has_rows, size_t *ret_size);
