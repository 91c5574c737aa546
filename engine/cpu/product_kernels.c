/* Lists the kernels for convolutions and matrix products, and chooses one for each layer.
 *
 * To add a kernel, enter it in the table below. A kernel claims the layers that it can compute. By
 * its rule it creates a step only for layers where it is worthwhile; with lowering->any it does so
 * for all claimed layers. The first kernel that creates a step is the rule's choice. While a
 * session is created, the autotuner runs all kernels that fit a layer, until BUDGET_MS is used up.
 * The tuning store keeps its choice by the layer's geometry. */
#include <string.h>

#include "engine/backend/autotune.h"
#include "engine/backend/tuning_store.h"
#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"

static const struct cpu_kernel *const kernels[] = {
    &cpu_winograd,       &cpu_depthwise,       &cpu_gemm, &cpu_conv, &cpu_matmul,
    &cpu_quantized_conv, &cpu_quantized_matmul};

enum { KERNELS = COUNT_OF(kernels), MOST_TIMED = 64, ROUNDS = 5 };

/* Measuring all layers of a session takes at most this CPU time of the compiling thread. */
#define BUDGET_MS 600.0

/* Layers below this are too fast to measure differences between kernels. */
#define WORTH_FLOPS 4e6

/* When memory is short, packed weights may exceed the originals by an eighth plus this. */
#define SLACK_BYTES ((size_t)1 << 20)

/* Another kernel replaces the rule's choice if it takes less than this share of that one's time. */
#define SWITCH_RATIO 0.92

/* A kernel with already packed weights may be slower by this factor, the measurement error. */
#define SAME_SPEED_RATIO 1.03

#define FLOAT_PRODUCTS   OP_CONV, OP_GEMM, OP_MATMUL
#define INTEGER_PRODUCTS OP_QLINEAR_CONV, OP_QLINEAR_MATMUL, OP_QGEMM

static bool is_of_integers(const struct node *node)
{
    static const enum op integer[] = {INTEGER_PRODUCTS};
    bool is = false;
    for (size_t i = 0; i < COUNT_OF(integer); i++)
        is = is || integer[i] == node->op;
    return is;
}

static const struct value *weights_of(const struct node *node)
{
    return node->inputs[is_of_integers(node) ? 3 : 1];
}

/* ---- a layer's geometry ---- */

static void hash_ints(struct graph_hash *hash, const struct node *node, const char *name)
{
    size_t count;
    const int64_t *values = node_ints(node, name, &count);
    const int64_t length = (int64_t)count;
    graph_hash_bytes(hash, &length, sizeof length);
    if (count)
        graph_hash_bytes(hash, values, count * sizeof *values);
}

/* All batches of more than one image count as the same layer. */
static struct graph_hash key_of(const struct lowering *lowering)
{
    const struct node *node = lowering->node;
    struct graph_hash hash = {{0, 0}};
    struct shape x = node->inputs[0]->shape;
    const struct shape *weights = &weights_of(node)->shape;
    if (x.rank > 2 && x.dims[0] > 2)
        x.dims[0] = 2;
    const int32_t facts[] = {(int32_t)node->op,
                             (int32_t)node->epilogue.activation,
                             node->epilogue.residual != NULL,
                             node_bias(node) != NULL,
                             node->gate != NULL,
                             (int32_t)node->output_count,
                             lowering->backend->options.threads,
                             (int32_t)node->inputs[0]->dtype,
                             (int32_t)node->outputs[0]->dtype,
                             x.rank,
                             weights->rank};
    const int64_t group = node_int(node, "group", 1);
    graph_hash_bytes(&hash, facts, sizeof facts);
    graph_hash_bytes(&hash, &group, sizeof group);
    graph_hash_bytes(&hash, x.dims, (size_t)x.rank * sizeof *x.dims);
    graph_hash_bytes(&hash, weights->dims, (size_t)weights->rank * sizeof *weights->dims);
    hash_ints(&hash, node, "strides");
    hash_ints(&hash, node, "pads");
    hash_ints(&hash, node, "dilations");
    graph_hash_bytes(&hash, simd()->name, strlen(simd()->name));
    return hash;
}

/* ---- choices of earlier sessions ---- */

static bool recall(const struct graph_hash *key, size_t *ret_kernel)
{
    char name[TUNING_TEXT];
    if (!tuning_find(TUNING_KERNEL, key, name))
        return false;
    for (size_t k = 0; k < KERNELS; k++)
        if (strcmp(kernels[k]->kernel.name, name) == 0) {
            *ret_kernel = k;
            return true;
        }
    return false;
}

/* True if packed weights are clearly larger than the originals, as Winograd's are. */
static bool is_spacious(const struct lowering *lowering, size_t packed)
{
    const struct tensor *weights = weights_of(lowering->node)->known;
    return weights && packed > weights->bytes + weights->bytes / 8 + SLACK_BYTES;
}

/* If a kernel's packed weights do not fit into memory, leaves *ret NULL and sets *err. */
static enum status create(size_t k, const struct lowering *lowering, struct step **ret,
                          struct error *err)
{
    struct backend *backend = lowering->backend;
    struct weight *before = backend->weights;
    const size_t bytes_before = backend->weight_bytes;
    const struct memory_budget *memory = backend->options.memory;
    struct kernel_caps caps;
    if (!kernel_claims(&kernels[k]->kernel, lowering->node, &caps))
        return STATUS_OK;
    enum status status = kernels[k]->create(lowering, ret, err);
    if (status == STATUS_OK && memory && memory->is_tight &&
        is_spacious(lowering, backend->weight_bytes - bytes_before))
        status = error_no_memory(err, "for the packed weights of the only kernel that fits");
    if (status != STATUS_NO_MEMORY)
        return status;
    step_free(*ret);
    *ret = NULL;
    weights_free_since(backend, backend->weights, before);
    return STATUS_OK;
}

/* ---- measuring ---- */

struct kernel_candidate {
    size_t kernel;
    struct step *step;
    struct weight *newest; /* newest weight of the backend after the step was created */
};

struct kernel_measurement {
    const struct lowering *lowering;
    struct kernel_candidate candidates[KERNELS]; /* the first is the rule's choice */
    size_t count;
    struct weight *before; /* the newest weight before the first candidate */
    unsigned char *block;  /* operands, then scratch */
    size_t block_bytes;
    int64_t begin; /* clock_thread(): waiting for other work on the machine is not charged */
    int rule_runs; /* runs of the first candidate */
};

static double spent_ms(const struct kernel_measurement *m)
{
    return clock_ms(m->lowering->backend->tuning_ns + clock_thread() - m->begin);
}

/* Assigns addresses in the block to the node's operands. If `block` is NULL, it resets them and
 * only counts the bytes. Constants have addresses. */
static size_t place_operands(const struct kernel_measurement *m, unsigned char *block)
{
    const struct node *node = m->lowering->node;
    struct program *program = m->lowering->program;
    size_t at = 0;
    for (size_t i = 0; i < node->input_count + node->output_count; i++) {
        const struct value *value =
            i < node->input_count ? node->inputs[i] : node->outputs[i - node->input_count];
        if (!value || value->known)
            continue;
        program->data[value->index] = block ? block + at : NULL;
        at += size_align(value_bytes(value) + 1, TENSOR_ALIGN);
    }
    return at;
}

static enum status make_block(struct kernel_measurement *m, struct error *err)
{
    enum { SMALL = 0x3c }; /* as floats these bytes are 0.0115, so sums stay finite */
    size_t scratch = 0;
    for (size_t c = 0; c < m->count; c++)
        if (m->candidates[c].step->scratch > scratch)
            scratch = m->candidates[c].step->scratch;
    const size_t operands = place_operands(m, NULL);
    void *block;
    TRY(memory_alloc(m->lowering->backend->options.memory, operands + scratch, &block, err));
    m->block = block;
    m->block_bytes = operands + scratch;
    memset(m->block, SMALL, operands + scratch);
    (void)place_operands(m, m->block);
    m->lowering->program->scratch = m->block + operands;
    return STATUS_OK;
}

/* The cost is the CPU time in milliseconds of the team's busiest member, so that other work on the
 * machine does not count. Members that have finished spin if each has a core, so on an idle machine
 * the cost is the duration of the step. */
static enum status run_candidate(void *context, size_t c, struct autotune_run *ret,
                                 struct error *err)
{
    struct kernel_measurement *m = context;
    struct step *step = m->candidates[c].step;
    int64_t before[MOST_TIMED], after[MOST_TIMED], most = 0;
    const double spent = spent_ms(m);
    const int there = forkjoin_cpu_times(before, MOST_TIMED);
    TRY(backend_check_stop(m->lowering->backend, err));
    TRY(program_step(m->lowering->program, step, err));
    (void)forkjoin_cpu_times(after, MOST_TIMED);
    for (int i = 0; i < there; i++)
        if (after[i] - before[i] > most)
            most = after[i] - before[i];
    ret->cost = clock_ms(most);
    ret->spent = spent_ms(m) - spent;
    m->rule_runs += c == 0;
    return STATUS_OK;
}

/* True if weights were packed only for this candidate. */
static bool packed_its_own(const struct kernel_measurement *m, size_t c)
{
    return m->candidates[c].newest != (c ? m->candidates[c - 1].newest : m->before);
}

/* Among kernels as fast as `best`, chooses one that shares its weights with other batch sizes. */
static size_t prefer_shared_weights(const struct kernel_measurement *m, const double *costs,
                                    size_t best)
{
    for (size_t c = 0; c < m->count && packed_its_own(m, best); c++)
        if (!packed_its_own(m, c) && costs[c] <= costs[best] * SAME_SPEED_RATIO)
            best = c;
    return best;
}

/* Frees every candidate except `chosen`, with the weights that were packed only for it. */
static void drop_others(struct kernel_measurement *m, size_t chosen)
{
    for (size_t c = m->count; c-- > 0;) {
        if (c == chosen)
            continue;
        step_free(m->candidates[c].step);
        weights_free_since(m->lowering->backend, m->candidates[c].newest,
                           c ? m->candidates[c - 1].newest : m->before);
    }
}

/* Makes every kernel that fits a candidate, the rule's first. */
static enum status gather_candidates(struct kernel_measurement *m, size_t ruled, struct step *step,
                                     struct error *err)
{
    struct lowering any = *m->lowering;
    any.any = true;
    m->candidates[m->count++] =
        (struct kernel_candidate){.kernel = ruled, .step = step, .newest = any.backend->weights};
    for (size_t k = 0; k < KERNELS; k++) {
        struct step *other = NULL;
        if (k == ruled)
            continue;
        const enum status status = create(k, &any, &other, err);
        if (other && strcmp(other->kernel, step->kernel) == 0)
            step_free(other); /* the rule has chosen this kernel already */
        else if (other)
            m->candidates[m->count++] = (struct kernel_candidate){
                .kernel = k, .step = other, .newest = any.backend->weights};
        TRY(status);
    }
    return STATUS_OK;
}

static enum status measure_all(struct kernel_measurement *m, size_t *ret_chosen, struct error *err)
{
    double costs[KERNELS];
    struct autotune tune = {.count = m->count,
                            .rounds = ROUNDS,
                            .clear = SWITCH_RATIO,
                            .run = run_candidate,
                            .context = m};
    TRY(make_block(m, err));
    tune.budget = BUDGET_MS - spent_ms(m);
    /* Splits loops evenly, so that no thread pays for chunks of a late one. */
    parallel_is_even = true;
    const enum status status = autotune_choose(&tune, costs, ret_chosen, err);
    parallel_is_even = false;
    TRY(status);
    *ret_chosen = prefer_shared_weights(m, costs, *ret_chosen);
    return STATUS_OK;
}

/* Replaces *ret, the step of the rule's kernel, by the fastest. */
static enum status choose_by_measuring(const struct lowering *lowering,
                                       const struct graph_hash *key, size_t ruled,
                                       struct weight *before, struct step **ret, struct error *err)
{
    struct kernel_measurement m = {.lowering = lowering, .before = before, .begin = clock_thread()};
    unsigned char *scratch = lowering->program->scratch;
    size_t chosen = 0;
    enum status status = gather_candidates(&m, ruled, *ret, err);
    if (status == STATUS_OK && m.count > 1)
        status = measure_all(&m, &chosen, err);
    if (status == STATUS_NO_MEMORY) /* too little for a trial: the rule's choice stays */
        status = STATUS_OK;
    drop_others(&m, chosen);
    (void)place_operands(&m, NULL);
    lowering->program->scratch = scratch;
    memory_free(lowering->backend->options.memory, m.block, m.block_bytes);
    *ret = m.candidates[chosen].step;
    (*ret)->tried = m.count > 1;
    /* Stores nothing if the budget ended after the warm-up, so the next start measures again. */
    if (status == STATUS_OK && (m.count == 1 || m.rule_runs > 1))
        tuning_keep(TUNING_KERNEL, key, kernels[m.candidates[chosen].kernel]->kernel.name);
    lowering->backend->tuning_ns += clock_thread() - m.begin;
    return status;
}

static bool is_worth_measuring(const struct lowering *lowering, const struct step *step)
{
    const struct node *node = lowering->node;
    return !lowering->any && !lowering->backend->options.no_kernel_tuning &&
           clock_ms(lowering->backend->tuning_ns) < BUDGET_MS && step->flops >= WORTH_FLOPS &&
           weights_of(node)->known;
}

STEP_CREATE(lower_product)
{
    struct weight *before = lowering->backend->weights;
    const struct graph_hash key = key_of(lowering);
    size_t k;
    if (!lowering->any && recall(&key, &k)) {
        struct lowering any = *lowering;
        any.any = true;
        TRY(create(k, &any, ret, err));
        if (*ret) {
            (*ret)->tried = true;
            return STATUS_OK;
        }
    }
    struct error failure = {0};
    enum status status = STATUS_OK;
    for (k = 0; k < KERNELS && !*ret && status == STATUS_OK; k++)
        status = create(k, lowering, ret, &failure);
    if (status == STATUS_OK && !*ret)
        status = failure.status; /* the kernel that claimed the node ran out of memory */
    if (status != STATUS_OK) {
        *err = failure;
        return status;
    }
    if (*ret && is_worth_measuring(lowering, *ret))
        return choose_by_measuring(lowering, &key, k - 1, before, ret, err);
    return STATUS_OK;
}

/* Claims the abilities of all kernels together. */
KERNEL_CLAIM(product_claim)
{
    const struct value *bias = node_bias(node);
    struct kernel_caps caps;
    if (node->op == OP_CONV) {
        if (!claim_reads_image(node) || node->inputs[0]->shape.rank > 5 ||
            !is_f32_constant(node_input(node, 1)) || (bias && !is_f32_constant(bias)))
            return false;
        ret->can = KERNEL_CHANNELS_LAST;
    }
    bool is_claimed = false;
    for (size_t k = 0; k < KERNELS; k++)
        if (kernel_claims(&kernels[k]->kernel, node, &caps)) {
            is_claimed = true;
            ret->can |= caps.can;
        }
    if (!is_of_integers(node))
        ret->narrow = NARROW_PRODUCT;
    ret->in_place = claim_residual(node);
    return is_claimed;
}

const struct cpu_kernel cpu_product = {
    {"product", {FLOAT_PRODUCTS, INTEGER_PRODUCTS}, product_claim}, lower_product};
