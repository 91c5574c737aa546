/* Constants on the devices. All sessions of a device share them.
 *
 * A hash of the constant identifies an upload. A second session with the same weights on a device
 * (another version of the model, a trial of another precision) uses the same upload. A session on
 * another device copies the upload, if the devices can access each other's memory. So weights are
 * packed only once.
 *
 * `lock` guards the list of all uploads. It is held while an upload is made, so that two sessions
 * do not make the same upload. */
#include "engine/cuda/program/program.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

/* A packed constant on a device, which several sessions may use. */
struct weight_upload {
    struct weight_upload *next;
    int device, users;
    struct graph_hash hash;
    size_t bytes;
    void *data;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct weight_upload *uploads; /* guarded by lock */

/* A session's use of an upload. */
struct cuda_weight {
    struct cuda_weight *next;
    struct tensor *constant, *zero; /* NULL once the session is compiled */
    enum weight_layout layout;
    enum dtype dtype;
    struct weight_upload *upload;
};

static float float_at(const struct tensor *tensor, size_t i)
{
    return tensor->dtype == DTYPE_F32 ? ((const float *)tensor->data)[i]
                                      : (float)tensor_number(tensor, i);
}

/* A packed constant: `rows` rows of `row` elements. A row has `outer` groups of `inner` elements,
 * each padded to `padded` elements; zeros fill the rest of the row. Steps are distances in elements
 * of the original constant. */
struct weight_packing {
    size_t rows, row, row_step;
    size_t outer, outer_step, inner, inner_step, padded;
};

static struct weight_packing weight_packing_of(const struct tensor *constant,
                                               enum weight_layout layout, enum dtype dtype)
{
    const struct shape *shape = &constant->shape;
    const size_t each = dtype_size(dtype) == 1 ? 2 : 1; /* bytes are padded to pairs */
    const size_t count = shape_count(shape);
    size_t taps = 1;
    struct weight_packing p = {1, count, 0, 1, 0, count, 1, count};
    if (layout == WEIGHT_AS_IS || layout == WEIGHT_OF_F16 || layout == WEIGHT_OF_BF16)
        return p;
    const size_t m = (size_t)shape->dims[0], c = (size_t)shape->dims[1];
    for (int d = 2; d < shape->rank; d++)
        taps *= (size_t)shape->dims[d];
    if (layout == WEIGHT_TAPS)
        p = (struct weight_packing){taps, 0, 1, m, c * taps, c, taps, c};
    else if (layout == WEIGHT_TRANSPOSED)
        p = (struct weight_packing){c, 0, 1, 1, 0, m, c, m};
    else if (layout == WEIGHT_ROWS)
        p = (struct weight_packing){m, 0, c, 1, 0, c, 1, c};
    else
        p = (struct weight_packing){m, 0, c * taps, taps, 1, c, taps, c};
    if (layout == WEIGHT_CONV_ROWS)
        p.padded = size_align(c, 2 * each);
    p.row = p.outer * p.padded;
    if (layout != WEIGHT_CONV && layout != WEIGHT_TAPS)
        p.row = size_align(p.row, 8 * each);
    return p;
}

/* Returns the index in the constant of element i of packed row r; SIZE_MAX for padding. */
static size_t source_of(const struct weight_packing *p, size_t r, size_t i)
{
    const size_t group = i / p->padded, at = i % p->padded;
    return group < p->outer && at < p->inner
               ? r * p->row_step + group * p->outer_step + at * p->inner_step
               : SIZE_MAX;
}

/* Rounds to float16. Finite numbers saturate, so that they stay finite. */
static uint16_t half_of(float x)
{
    const float greatest = 65504;
    return float_to_half(isfinite(x) ? fminf(fmaxf(x, -greatest), greatest) : x);
}

static float rounded(float x, enum weight_layout layout)
{
    return layout == WEIGHT_OF_F16    ? half_to_float(half_of(x))
           : layout == WEIGHT_OF_BF16 ? bfloat16_to_float(float_to_bfloat16(x))
                                      : x;
}

int cuda_weight_at(const struct tensor *constant, const struct tensor *zero,
                   enum weight_layout layout, size_t i, size_t *ret_channel)
{
    const int64_t *dims = constant->shape.dims;
    *ret_channel = layout == WEIGHT_TRANSPOSED
                       ? i % (size_t)dims[1]
                       : i / (shape_count(&constant->shape) / (size_t)dims[0]);
    const size_t at = zero && shape_count(&zero->shape) > 1 ? *ret_channel : 0;
    return (int)(tensor_int(constant, i) - (zero ? tensor_int(zero, at) : 0));
}

static void pack_one(const struct cuda_weight *weight, size_t from, void *to)
{
    const struct tensor *constant = weight->constant;
    const enum dtype dtype = weight->dtype;
    const size_t size = dtype_size(dtype);
    if (from == SIZE_MAX) {
        memset(to, 0, size);
    } else if (!dtype_is_float(dtype) && !weight->zero && dtype == constant->dtype) {
        memcpy(to, (const unsigned char *)constant->data + from * size, size);
    } else if (!dtype_is_float(dtype)) { /* the lower bytes of an int */
        size_t channel;
        const int x = cuda_weight_at(constant, weight->zero, weight->layout, from, &channel);
        memcpy(to, &x, size);
    } else if (dtype == DTYPE_F32) {
        *(float *)to = rounded(float_at(constant, from), weight->layout);
    } else if (dtype == DTYPE_F64) {
        *(double *)to = tensor_number(constant, from);
    } else {
        *(uint16_t *)to = dtype == DTYPE_BF16 ? float_to_bfloat16(float_at(constant, from))
                                              : half_of(float_at(constant, from));
    }
}

int64_t cuda_weights_row(const struct tensor *constant, enum weight_layout layout, enum dtype dtype)
{
    return (int64_t)weight_packing_of(constant, layout, dtype).row;
}

static bool is_same(const struct weight_upload *upload, const struct graph_hash *hash, size_t bytes)
{
    return upload->bytes == bytes && !memcmp(&upload->hash, hash, sizeof *hash);
}

/* Copies an equal upload from another device. Returns false if no reachable device has one. */
static bool copy_from_peer(const struct cuda_backend *backend, const struct weight_upload *wanted)
{
    for (const struct weight_upload *u = uploads; u; u = u->next) {
        if (u->device == backend->device || !is_same(u, &wanted->hash, wanted->bytes) ||
            device_failure(u->device) || !device_reads_peer(backend, u->device))
            continue;
        cudaError_t result = cudaMemcpyPeerAsync(wanted->data, backend->device, u->data, u->device,
                                                 wanted->bytes, backend->stream);
        if (result == cudaSuccess)
            result = cudaStreamSynchronize(backend->stream);
        cuda_ignore(result); /* if no copy succeeds, the caller packs the weights on the host */
        if (result == cudaSuccess)
            return true;
    }
    return false;
}

static struct graph_hash hash_of(const struct cuda_weight *weight)
{
    const struct tensor *constant = weight->constant;
    struct graph_hash hash = {0};
    const int64_t form[] = {(int64_t)weight->layout, (int64_t)weight->dtype,
                            (int64_t)constant->dtype, constant->shape.rank};
    graph_hash_bytes(&hash, form, sizeof form);
    graph_hash_bytes(&hash, constant->shape.dims,
                     (size_t)constant->shape.rank * sizeof constant->shape.dims[0]);
    graph_hash_bytes(&hash, constant->data, constant->bytes);
    if (weight->zero)
        graph_hash_bytes(&hash, weight->zero->data, weight->zero->bytes);
    return hash;
}

static enum status make_locked(struct cuda_backend *backend, const struct cuda_weight *weight,
                               struct weight_upload *upload, struct error *err)
{
    TRY(device_alloc(backend, upload->bytes, "weights", &upload->data, err));
    if (upload->bytes == 0 || copy_from_peer(backend, upload))
        return STATUS_OK;
    const struct weight_packing p =
        weight_packing_of(weight->constant, weight->layout, weight->dtype);
    const size_t size = dtype_size(weight->dtype);
    unsigned char *packed = malloc(upload->bytes);
    if (!packed)
        return error_no_memory(err, "while packing weights");
    for (size_t r = 0; r < p.rows; r++)
        for (size_t i = 0; i < p.row; i++)
            pack_one(weight, source_of(&p, r, i), packed + (r * p.row + i) * size);
    enum status status =
        device_upload(backend, upload->data, packed, upload->bytes, "weights", err);
    free(packed);
    return status;
}

static enum status find_or_make_locked(struct cuda_backend *backend, struct cuda_weight *weight,
                                       struct error *err)
{
    const struct graph_hash hash = hash_of(weight);
    const struct weight_packing packing =
        weight_packing_of(weight->constant, weight->layout, weight->dtype);
    const size_t bytes = packing.rows * packing.row * dtype_size(weight->dtype);
    for (struct weight_upload *u = uploads; u; u = u->next) {
        if (u->device == backend->device && is_same(u, &hash, bytes)) {
            u->users++;
            weight->upload = u;
            return STATUS_OK;
        }
    }
    struct weight_upload *upload = calloc(1, sizeof *upload);
    TRY(check_memory(upload, "while packing weights", err));
    *upload =
        (struct weight_upload){.device = backend->device, .users = 1, .hash = hash, .bytes = bytes};
    enum status status = make_locked(backend, weight, upload, err);
    if (status != STATUS_OK) {
        device_free(backend, upload->data);
        free(upload);
        return status;
    }
    upload->next = uploads;
    uploads = upload;
    weight->upload = upload;
    return STATUS_OK;
}

enum status cuda_weights_without_zero(struct cuda_backend *backend, struct tensor *constant,
                                      struct tensor *zero, enum weight_layout layout,
                                      enum dtype dtype, const void **ret, struct error *err)
{
    for (struct cuda_weight *w = backend->weights; w; w = w->next) {
        if (w->constant == constant && w->zero == zero && w->layout == layout &&
            w->dtype == dtype) {
            *ret = w->upload->data;
            return STATUS_OK;
        }
    }
    struct cuda_weight *weight = calloc(1, sizeof *weight);
    TRY(check_memory(weight, "while packing weights", err));
    *weight =
        (struct cuda_weight){.constant = constant, .zero = zero, .layout = layout, .dtype = dtype};
    pthread_mutex_lock(&lock);
    enum status status = find_or_make_locked(backend, weight, err);
    pthread_mutex_unlock(&lock);
    if (status != STATUS_OK) {
        free(weight);
        return status;
    }
    (void)tensor_ref(constant);
    if (zero)
        (void)tensor_ref(zero);
    weight->next = backend->weights;
    backend->weights = weight;
    backend->weight_bytes += weight->upload->bytes;
    *ret = weight->upload->data;
    return STATUS_OK;
}

enum status cuda_weights_get(struct cuda_backend *backend, struct tensor *constant,
                             enum weight_layout layout, enum dtype dtype, const void **ret,
                             struct error *err)
{
    const bool converts = dtype_is_float(constant->dtype) && dtype_is_float(dtype);
    return cuda_weights_without_zero(backend, constant, NULL, layout,
                                     converts ? dtype : constant->dtype, ret, err);
}

enum status cuda_weights_of(struct cuda_backend *backend, const struct value *value,
                            enum dtype dtype, const void **ret, struct error *err)
{
    *ret = NULL;
    return value && value->known
               ? cuda_weights_get(backend, value->known, WEIGHT_AS_IS, dtype, ret, err)
               : STATUS_OK;
}

enum status cuda_epilogue_of(const struct cuda_lowering *compile, const struct value *bias,
                             struct cuda_epilogue *ret, struct error *err)
{
    const struct epilogue *e = &compile->node->epilogue;
    const enum dtype dtype = compile->node->outputs[0]->dtype;
    const enum weight_layout layout = dtype == DTYPE_F16    ? WEIGHT_OF_F16
                                      : dtype == DTYPE_BF16 ? WEIGHT_OF_BF16
                                                            : WEIGHT_AS_IS;
    const void *data = NULL;
    if (bias)
        TRY(cuda_weights_get(compile->backend, bias->known, layout, DTYPE_F32, &data, err));
    *ret = (struct cuda_epilogue){data, NULL, (int)e->activation, e->alpha, e->beta, (int)dtype};
    return STATUS_OK;
}

enum status cuda_weights_upload(struct cuda_backend *backend, enum dtype dtype, const void *numbers,
                                size_t count, const void **ret, struct error *err)
{
    struct tensor *tensor;
    struct shape shape = SHAPE((int64_t)count);
    TRY(tensor_create(NULL, dtype, &shape, &tensor, err));
    memcpy(tensor->data, numbers, tensor->bytes);
    const enum status status = cuda_weights_get(backend, tensor, WEIGHT_AS_IS, dtype, ret, err);
    tensor_unref(tensor);
    return status;
}

enum status cuda_operand_of(const struct cuda_lowering *compile, const struct value *value,
                            enum dtype dtype, struct cuda_operand *ret, struct error *err)
{
    ret->value = value->index;
    return cuda_weights_of(compile->backend, value, dtype, &ret->constant, err);
}

/* Frees the host's copies, which are not needed any more once all programs are compiled. */
void cuda_weights_settle(struct cuda_backend *backend)
{
    for (struct cuda_weight *w = backend->weights; w; w = w->next) {
        tensor_unref(w->constant);
        tensor_unref(w->zero);
        w->constant = w->zero = NULL;
    }
}

static void let_go_locked(const struct cuda_backend *backend, struct weight_upload *upload)
{
    if (--upload->users > 0)
        return;
    struct weight_upload **at = &uploads;
    while (*at != upload)
        at = &(*at)->next;
    *at = upload->next;
    device_free(backend, upload->data);
    free(upload);
}

void cuda_weights_free(struct cuda_backend *backend)
{
    cuda_weights_settle(backend);
    pthread_mutex_lock(&lock);
    while (backend->weights) {
        struct cuda_weight *weight = backend->weights;
        backend->weights = weight->next;
        let_go_locked(backend, weight->upload);
        free(weight);
    }
    pthread_mutex_unlock(&lock);
}
