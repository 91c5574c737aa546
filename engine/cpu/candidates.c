/* Convolutions and products of matrices: the kernels there are, and which of them a layer gets.
 *
 * The table is the place where a further kernel is entered. Each maker takes a layer that its
 * kernel fits and pays for, by a rule of its own; with compile->any, every layer that it fits. The
 * first that takes it is the rule's choice. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/simd/simd.h"
#include "engine/kernel_choices.h"

struct candidate {
    const char *name;
    step_maker make;
};

static const struct candidate candidates[] = {{"winograd", make_winograd},
                                              {"depthwise", make_depthwise},
                                              {"gemm", make_dense},
                                              {"dnnl_conv", make_conv},
                                              {"dnnl_matmul", make_matmul}};

enum { CANDIDATES = COUNT_OF(candidates), MOST_CHOICES = 1 << 13, MOST_TIMED = 64 };

/* Below, all are quick, and none can be told from another. */
#define WORTH_FLOPS 4e6

/* Another kernel than the rule's has to be that much quicker. */
#define CLEARLY 0.92

/* A kernel that reads weights which other steps have packed already may be that much slower than
 * one that would keep its own: what a trial is off by. */
#define AS_QUICK 1.03

/* ---- what is known ---- */

struct choice {
    uint64_t key;
    size_t candidate;
};

static struct {
    pthread_mutex_t lock;
    struct choice *choices;
    size_t count, capacity, made;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool find(uint64_t key, size_t *ret)
{
    for (size_t i = 0; i < known.count; i++)
        if (known.choices[i].key == key) {
            *ret = known.choices[i].candidate;
            return true;
        }
    return false;
}

/* With the lock held. What does not fit in memory is tried again another time. */
static bool add(uint64_t key, size_t candidate)
{
    size_t before;
    if (known.count == MOST_CHOICES || find(key, &before))
        return false;
    if (known.count == known.capacity) {
        const size_t capacity = known.capacity * 2 + 64;
        struct choice *bigger = reallocarray(known.choices, capacity, sizeof *bigger);
        if (!bigger)
            return false;
        known.choices = bigger;
        known.capacity = capacity;
    }
    known.choices[known.count++] = (struct choice){key, candidate};
    return true;
}

static bool recall(uint64_t key, size_t *ret)
{
    pthread_mutex_lock(&known.lock);
    const bool found = find(key, ret);
    pthread_mutex_unlock(&known.lock);
    return found;
}

static void remember(uint64_t key, size_t candidate)
{
    pthread_mutex_lock(&known.lock);
    known.made += add(key, candidate);
    pthread_mutex_unlock(&known.lock);
}

#define LINE_MOST 64

char *kernel_choices_text(void)
{
    pthread_mutex_lock(&known.lock);
    char *text = malloc(known.count * LINE_MOST + 1);
    size_t at = 0;
    for (size_t i = 0; text && i < known.count; i++)
        at += (size_t)snprintf(text + at, LINE_MOST, "%016" PRIx64 " %s\n", known.choices[i].key,
                               candidates[known.choices[i].candidate].name);
    if (text)
        text[at] = '\0';
    pthread_mutex_unlock(&known.lock);
    return text;
}

/* One line at `text`; its length with the newline, 0 when it is none. */
static size_t read_line(const char *text, uint64_t *ret_key, size_t *ret_candidate)
{
    char line[LINE_MOST], name[17];
    int length = 0;
    const char *end = memchr(text, '\n', strnlen(text, sizeof line));
    if (!end)
        return 0;
    /* a copy: sscanf() measures the whole rest of what it is given */
    snprintf(line, sizeof line, "%.*s", (int)(end - text), text);
    /* NOLINTNEXTLINE(cert-err34-c): 16 digits always fit */
    if (sscanf(line, "%16" SCNx64 " %16[a-z0-9_]%n", ret_key, name, &length) != 2 || line[length])
        return 0;
    for (size_t c = 0; c < CANDIDATES; c++)
        if (strcmp(candidates[c].name, name) == 0) {
            *ret_candidate = c;
            return (size_t)length + 1;
        }
    return 0;
}

bool kernel_choices_add(const char *text)
{
    uint64_t key = 0;
    size_t candidate = 0, length;
    for (const char *at = text; *at; at += length)
        if (!(length = read_line(at, &key, &candidate)))
            return false;
    pthread_mutex_lock(&known.lock);
    for (const char *at = text; *at; at += read_line(at, &key, &candidate)) {
        (void)read_line(at, &key, &candidate);
        (void)add(key, candidate);
    }
    pthread_mutex_unlock(&known.lock);
    return true;
}

size_t kernel_choices_made(void)
{
    pthread_mutex_lock(&known.lock);
    const size_t made = known.made;
    pthread_mutex_unlock(&known.lock);
    return made;
}

void kernel_choices_forget(void)
{
    pthread_mutex_lock(&known.lock);
    free(known.choices);
    known.choices = NULL;
    known.count = known.capacity = 0;
    pthread_mutex_unlock(&known.lock);
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

/* All batches of more than one image are the same layer. */
static uint64_t key_of(const struct compile *compile)
{
    const struct node *node = compile->node;
    struct graph_hash hash = {{0, 0}};
    struct shape x = node->inputs[0]->shape;
    const struct shape *weights = &node->inputs[1]->shape;
    if (x.rank > 2 && x.dims[0] > 2)
        x.dims[0] = 2;
    const int32_t facts[] = {(int32_t)node->op,
                             (int32_t)node->epilogue.activation,
                             node->epilogue.residual != NULL,
                             node_bias(node) != NULL,
                             node->gate != NULL,
                             (int32_t)node->output_count,
                             compile->backend->options.threads,
                             (int32_t)node->inputs[0]->dtype,
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
    return hash.words[0] ^ hash.words[1];
}

/* ---- trials ---- */

struct contender {
    size_t candidate;
    struct step *step;
    struct weight *newest; /* of the backend's weights, once the step was made */
    double ms;             /* best so far */
};

struct trial {
    const struct compile *compile;
    struct contender contenders[CANDIDATES];
    size_t count;
    struct weight *oldest; /* before the first contender */
    unsigned char *block;  /* operands, then scratch */
};

/* Bytes of a value's operand in the block. */
static size_t room_for(const struct value *value)
{
    return size_align(shape_count(&value->shape) * dtype_size(value->dtype) + 1, TENSOR_ALIGN);
}

/* Gives the node's operands places in the block, or (block NULL) takes them back and only counts
 * the bytes. Constants have theirs. */
static size_t place_operands(const struct trial *trial, unsigned char *block)
{
    const struct node *node = trial->compile->node;
    struct program *program = trial->compile->program;
    size_t at = 0;
    for (size_t i = 0; i < node->input_count + node->output_count; i++) {
        const struct value *value =
            i < node->input_count ? node->inputs[i] : node->outputs[i - node->input_count];
        if (!value || value->known)
            continue;
        program->data[value->index] = block ? block + at : NULL;
        at += room_for(value);
    }
    return at;
}

static enum status make_block(struct trial *trial, struct error *err)
{
    enum { SMALL = 0x3c }; /* floats of such bytes are 0.0115, which no sum makes infinite */
    size_t scratch = 0;
    for (size_t c = 0; c < trial->count; c++)
        if (trial->contenders[c].step->scratch > scratch)
            scratch = trial->contenders[c].step->scratch;
    const size_t operands = place_operands(trial, NULL);
    trial->block = aligned_alloc(4096, size_align(operands + scratch + 1, 4096));
    if (!trial->block)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    memset(trial->block, SMALL, operands + scratch);
    (void)place_operands(trial, trial->block);
    trial->compile->program->scratch = trial->block + operands;
    return STATUS_OK;
}

/* The time on a core of the busiest member of the team, in milliseconds: other work on a busy
 * machine does not count. Who is done with its part waits awake, as long as all have cores; so
 * where nothing disturbs it is the time that the step takes. */
static enum status time_step(struct step *step, struct program *program, double *ret_ms,
                             struct error *err)
{
    int64_t before[MOST_TIMED], after[MOST_TIMED], most = 0;
    const int there = forkjoin_cpu_times(before, MOST_TIMED);
    TRY(step->run(step, program, err));
    (void)forkjoin_cpu_times(after, MOST_TIMED);
    for (int i = 0; i < there; i++)
        if (after[i] - before[i] > most)
            most = after[i] - before[i];
    *ret_ms = clock_ms(most);
    return STATUS_OK;
}

/* In turns; who is far behind drops out. */
static enum status run_trial(struct trial *trial, struct error *err)
{
    enum { ROUNDS = 5, FAR = 2 };
    struct program *program = trial->compile->program;
    double best = 1e30;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t c = 0; c < trial->count; c++) {
            struct contender *contender = &trial->contenders[c];
            if (round > 1 && contender->ms > FAR * best)
                continue;
            double ms;
            TRY(time_step(contender->step, program, &ms, err));
            if (round <= 1 || ms < contender->ms) /* the first run only warms up */
                contender->ms = ms;
            if (round && ms < best)
                best = ms;
        }
    return STATUS_OK;
}

/* Were weights packed for this contender alone? */
static bool packed_its_own(const struct trial *trial, size_t c)
{
    return trial->contenders[c].newest != (c ? trial->contenders[c - 1].newest : trial->oldest);
}

/* The quickest; the first one, which is the rule's, unless another is clearly quicker; of those
 * that are as quick, one that shares its weights with the steps of other batch sizes. */
static size_t winner_of(const struct trial *trial)
{
    size_t best = 0;
    for (size_t c = 1; c < trial->count; c++)
        if (trial->contenders[c].ms < trial->contenders[0].ms * CLEARLY &&
            trial->contenders[c].ms < trial->contenders[best].ms)
            best = c;
    for (size_t c = 0; c < trial->count && packed_its_own(trial, best); c++)
        if (!packed_its_own(trial, c) &&
            trial->contenders[c].ms <= trial->contenders[best].ms * AS_QUICK)
            best = c;
    return best;
}

/* Every contender but `winner` goes, with the weights that were packed for it alone. */
static void drop_others(struct trial *trial, size_t winner)
{
    for (size_t c = trial->count; c-- > 0;) {
        if (c == winner)
            continue;
        const struct contender *contender = &trial->contenders[c];
        step_free(contender->step);
        weights_drop(trial->compile->backend, contender->newest,
                     c ? trial->contenders[c - 1].newest : trial->oldest);
    }
}

/* Every other kernel that fits enters beside the rule's. */
static enum status gather(struct trial *trial, size_t ruled, struct step *step, struct error *err)
{
    struct compile any = *trial->compile;
    any.any = true;
    trial->contenders[trial->count++] =
        (struct contender){.candidate = ruled, .step = step, .newest = any.backend->weights};
    for (size_t c = 0; c < CANDIDATES; c++) {
        struct step *other = NULL;
        if (c == ruled)
            continue;
        const enum status status = candidates[c].make(&any, &other, err);
        if (other)
            trial->contenders[trial->count++] =
                (struct contender){.candidate = c, .step = other, .newest = any.backend->weights};
        TRY(status);
    }
    return STATUS_OK;
}

static enum status by_trial(const struct compile *compile, uint64_t key, size_t ruled,
                            struct weight *oldest, struct step **ret, struct error *err)
{
    struct trial trial = {.compile = compile, .oldest = oldest};
    unsigned char *scratch = compile->program->scratch;
    const int64_t start = clock_now();
    enum status status = gather(&trial, ruled, *ret, err);
    if (status == STATUS_OK && trial.count > 1)
        status = make_block(&trial, err);
    parallel_is_even = true; /* as oneDNN's are: who helps a late member out would look slower */
    if (status == STATUS_OK && trial.count > 1)
        status = run_trial(&trial, err);
    parallel_is_even = false;
    const size_t winner = status == STATUS_OK ? winner_of(&trial) : 0;
    drop_others(&trial, winner);
    (void)place_operands(&trial, NULL);
    compile->program->scratch = scratch;
    free(trial.block);
    *ret = trial.contenders[winner].step;
    (*ret)->tried = trial.count > 1;
    if (status == STATUS_OK)
        remember(key, trial.contenders[winner].candidate);
    compile->backend->trials_ns += clock_now() - start;
    return status;
}

static bool is_worth_trying(const struct compile *compile, const struct step *step)
{
    const struct node *node = compile->node;
    return !compile->any && !compile->backend->options.no_kernel_trials &&
           compile->backend->trials_ns < KERNEL_TRIALS_MS * INT64_C(1000000) &&
           step->flops >= WORTH_FLOPS && node->inputs[0]->dtype == DTYPE_F32 &&
           node->outputs[0]->dtype == DTYPE_F32 && node->inputs[1]->known;
}

enum status make_candidate(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    if (node->op != OP_CONV && node->op != OP_MATMUL && node->op != OP_GEMM)
        return STATUS_OK;
    struct weight *oldest = compile->backend->weights;
    const uint64_t key = key_of(compile);
    size_t c;
    if (!compile->any && recall(key, &c)) {
        struct compile any = *compile;
        any.any = true;
        TRY(candidates[c].make(&any, ret, err));
        if (*ret) {
            (*ret)->tried = true;
            return STATUS_OK;
        }
    }
    for (c = 0; c < CANDIDATES && !*ret; c++)
        TRY(candidates[c].make(compile, ret, err));
    if (*ret && is_worth_trying(compile, *ret))
        return by_trial(compile, key, c - 1, oldest, ret, err);
    return STATUS_OK;
}
