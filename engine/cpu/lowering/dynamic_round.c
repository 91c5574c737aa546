/* OP_DYNAMIC_ROUND: finds the range of all numbers, then rounds each to one of 256 values in it. */
#include <math.h>

#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"

enum { PIECE = 4096 };

struct range {
    float min, max;
    char apart[56]; /* gives each range a cache line */
};

struct round_step {
    struct step step;
    const struct simd_kernels *simd;
    size_t count;
    /* of this run */
    float scale;
    int zero;
    struct range *ranges; /* one per thread */
};

/* Returns the number of elements in pieces begin … end - 1. */
static size_t length(const struct round_step *s, size_t begin, size_t end)
{
    return (end * PIECE < s->count ? end * PIECE : s->count) - begin * PIECE;
}

static void find_range(void *context, size_t begin, size_t end)
{
    const struct round_step *s = context;
    struct range *range = &s->ranges[forkjoin_member()];
    s->simd->range((const float *)(const void *)s->step.x + begin * PIECE, length(s, begin, end),
                   &range->min, &range->max);
}

static void round_pieces(void *context, size_t begin, size_t end)
{
    const struct round_step *s = context;
    uint8_t stored[PIECE];
    for (size_t piece = begin; piece < end; piece++) {
        const size_t n = length(s, piece, piece + 1);
        const float *x = (const float *)(const void *)s->step.x + piece * PIECE;
        s->simd->quantize(x, s->scale, s->zero, false, stored, n);
        s->simd->dequantize(stored, false, s->scale, s->zero,
                            (float *)(void *)s->step.y + piece * PIECE, n);
    }
}

/* Computes the scale for the range, which includes 0, and the zero point. */
static void set_terms(struct round_step *s, int threads)
{
    float min = 0, max = 0;
    for (int t = 0; t < threads; t++) {
        min = s->ranges[t].min < min ? s->ranges[t].min : min;
        max = s->ranges[t].max > max ? s->ranges[t].max : max;
    }
    s->scale = max == min ? 1 : (max - min) / 255;
    const float zero = rintf(-min / s->scale);
    s->zero = zero > 0 ? (int)(zero < 255 ? zero : 255) : 0;
}

STEP_RUN(round_run)
{
    struct round_step *s = (struct round_step *)base;
    const int threads = program->threads;
    const size_t pieces = (s->count + PIECE - 1) / PIECE;
    s->ranges = (struct range *)(void *)program->scratch;
    for (int t = 0; t < threads; t++)
        s->ranges[t].min = s->ranges[t].max = 0;
    parallel_for(threads, pieces, PIECE / 16, find_range, s);
    set_terms(s, threads);
    parallel_for(threads, pieces, PIECE / 8, round_pieces, s);
    return STATUS_OK;
}

KERNEL_CLAIM(dynamic_round_claim)
{
    return node->inputs[0]->dtype == DTYPE_F32 && shape_count(&node->inputs[0]->shape);
}

STEP_CREATE(lower_dynamic_round)
{
    const struct node *node = lowering->node;
    struct round_step *step = step_create(lowering, sizeof *step, round_run, ret, err);
    TRY(allocated(step));
    step->step.kernel = "round";
    step->simd = simd();
    step->count = shape_count(&node->inputs[0]->shape);
    step->step.scratch = (size_t)lowering->program->threads * sizeof(struct range);
    return STATUS_OK;
}

const struct cpu_kernel cpu_dynamic_round = {{"round", {OP_DYNAMIC_ROUND}, dynamic_round_claim},
                                             lower_dynamic_round};
