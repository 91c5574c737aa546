/* Attention and Move: operators made by passes (engine/ops/attention.h). Attention is computed in
 * double, one row of scores at a time. */
#include "engine/ops/attention.h"

#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/reference/convert.h"
#include "engine/reference/nn.h"

struct operand_of {
    const struct tensor *tensor;
    const struct access_map *map;
    int64_t base; /* of the matrix at hand */
};

static double number(const struct operand_of *o, int64_t row, int64_t column)
{
    double value;
    const int64_t at =
        o->base + access_map_at(&o->map->group[1], row) + access_map_at(&o->map->group[2], column);
    load_doubles(element(o->tensor->data, o->tensor->dtype, (size_t)at), o->tensor->dtype, &value,
                 1);
    return value;
}

static void enter_matrix(struct operand_of *o, int64_t matrix)
{
    o->base = o->map->offset + access_map_at(&o->map->group[0], matrix);
}

/* s[keys] = exp(score - greatest); returns their sum. */
static double score_row(const struct attention *a, const struct operand_of *q,
                        const struct operand_of *k, const struct operand_of *bias, int64_t row,
                        double *s)
{
    double greatest = -INFINITY, sum = 0;
    for (int64_t key = 0; key < a->keys; key++) {
        double dot = 0;
        for (int64_t d = 0; d < a->depth; d++)
            dot += number(q, row, d) * number(k, key, d);
        s[key] = dot * (double)a->scale;
        for (size_t b = 0; b < a->bias_count; b++)
            s[key] += number(&bias[b], row, key);
        greatest = s[key] > greatest ? s[key] : greatest;
    }
    for (int64_t key = 0; key < a->keys; key++) {
        s[key] = exp(s[key] - greatest);
        sum += s[key];
    }
    return sum;
}

static enum status attend(const struct attention *a, const struct kernel_args *args, double *scores,
                          struct error *err)
{
    struct operand_of q = {args->in[0], &a->q, 0}, k = {args->in[1], &a->k, 0};
    struct operand_of v = {args->in[2], &a->v, 0}, bias[ATTENTION_BIASES];
    const struct tensor *y = *args->out[0];
    for (size_t b = 0; b < a->bias_count; b++)
        bias[b] = (struct operand_of){args->in[3 + b], &a->bias[b], 0};
    for (int64_t matrix = 0; matrix < a->batch; matrix++) {
        const int64_t to = a->y.offset + access_map_at(&a->y.group[0], matrix);
        enter_matrix(&q, matrix);
        enter_matrix(&k, matrix);
        enter_matrix(&v, matrix);
        for (size_t b = 0; b < a->bias_count; b++)
            enter_matrix(&bias[b], matrix);
        for (int64_t row = 0; row < a->rows; row++) {
            TRY(kernel_goes_on(args, (size_t)(a->keys * (a->depth + a->width)), err));
            const double sum = score_row(a, &q, &k, bias, row, scores);
            for (int64_t d = 0; d < a->width; d++) {
                double result = 0;
                for (int64_t key = 0; key < a->keys; key++)
                    result += scores[key] * number(&v, key, d);
                result = a->nan_is_zero && isnan(sum) ? 0 : result / sum;
                const int64_t at =
                    to + access_map_at(&a->y.group[1], row) + access_map_at(&a->y.group[2], d);
                store_doubles(&result, y->dtype, element_at(y->data, y->dtype, (size_t)at), 1);
            }
        }
    }
    return STATUS_OK;
}

KERNEL(kernel_attention)
{
    struct attention attention;
    struct shape shape;
    TRY(attention_load(args->node, &attention, &shape, err));
    double *scores = kernel_scratch(args, (size_t)attention.keys, sizeof *scores, err);
    if (!scores)
        return STATUS_NO_MEMORY;
    return attend(&attention, args, scores, err);
}

KERNEL(kernel_move)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = *args->out[0];
    const size_t size = dtype_size(x->dtype);
    struct access_map map;
    TRY(access_map_load(args->node, "map", 1, shape_count(&x->shape), &map, err));
    const int64_t count = access_map_extent(&map.group[0]);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)y->data + (size_t)i * size,
               (const char *)x->data +
                   (size_t)(map.offset + access_map_at(&map.group[0], i)) * size,
               size);
    return STATUS_OK;
}
