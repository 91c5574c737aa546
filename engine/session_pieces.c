/* Batches run as pieces.
 *
 * A large batch may take longer per image than a smaller one: its activations no longer fit the
 * cache. And a batch of 5 padded to 8 computes three images that nobody asked for. L(b) of the
 * compiled sizes says what is quickest for each number of images: one program, or several runs of
 * smaller ones. Sizes that no number of images uses are let go, and with them the memory of their
 * activations: the arena is that of the largest piece. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/session_internal.h"

/* Below this a batch is left whole: what there is to gain is lost in the measurement. */
#define WORTH_CUTTING_MS 2.0

/* Other runs than the program of the next compiled size have to be that much quicker; pieces that
 * make up exactly a compiled size only as quick, as they need less memory. */
#define WORTHWHILE 0.96

#define DOUBTS 5 /* measurements more of times that cannot be */

/* Rounds for which a plan has to stand, and how long these may take. */
#define STANDING  3
#define SETTLE_MS 900

static int largest(const struct session *session)
{
    return session->compiled[session->compiled_count - 1].size;
}

/* The quickest way for exactly t images: cost[t], and the size of its first run. */
static void find_exact(const struct session *session, int most, double *cost, int *first)
{
    cost[0] = 0;
    for (int t = 1; t <= most; t++) {
        first[t] = 0;
        for (size_t i = 0; i < session->compiled_count && session->compiled[i].size <= t; i++) {
            const int size = session->compiled[i].size;
            const double ms = session->info.batches[i].milliseconds;
            const double sum = ms + cost[t - size];
            /* Ascending sizes: of equally quick ways the one with the larger pieces. */
            const bool whole = size == t && (ms < WORTH_CUTTING_MS || ms < cost[t]);
            if (!first[t] || whole || (size < t && sum <= cost[t])) {
                cost[t] = sum;
                first[t] = size;
            }
        }
    }
}

static size_t index_of(const struct session *session, int size)
{
    size_t i = 0;
    while (session->compiled[i].size < size)
        i++;
    return i;
}

/* How many images the runs for n images take together: as many, or more where a padded run is
 * quicker than several. */
static void choose_padding(struct session *session, const double *cost)
{
    const int most = largest(session);
    for (int n = 1; n <= most; n++) {
        const int whole = session->compiled[index_of(session, n)].size;
        int best = whole;
        for (int t = n; t <= most; t++)
            if (cost[t] < cost[best])
                best = t;
        const bool clear = cost[whole] >= WORTH_CUTTING_MS && cost[best] < WORTHWHILE * cost[whole];
        session->padded[n] = clear ? best : whole;
    }
}

static void mark_used(const struct session *session, bool *used)
{
    used[0] = true; /* a single image, and what descriptions are made of */
    for (int n = 1; n <= largest(session); n++)
        for (int left = session->padded[n]; left > 0; left -= session->piece[left])
            used[index_of(session, session->piece[left])] = true;
}

/* What /devices shows of a size that is run as pieces. */
static void note_pieces(struct session *session, const double *cost)
{
    size_t bytes[SESSION_MAX_BATCHES];
    for (size_t i = 0; i < session->info.batch_count; i++)
        bytes[i] = session->info.batches[i].activation_bytes;
    for (size_t i = 0; i < session->info.batch_count; i++) {
        struct session_batch *batch = &session->info.batches[i];
        const int padded = session->padded[batch->size];
        batch->piece = session->piece[padded];
        batch->milliseconds = cost[padded];
        batch->activation_bytes = bytes[index_of(session, batch->piece)];
    }
}

static void drop_unused(struct session *session, const bool *used)
{
    size_t kept = 0;
    for (size_t i = 0; i < session->compiled_count; i++) {
        if (!used[i]) {
            compiled_done(session, &session->compiled[i]);
            continue;
        }
        if (kept != i) {
            session->compiled[kept] = session->compiled[i];
            session->compiled[i] = (struct compiled){0};
        }
        kept++;
    }
    session->compiled_count = kept;
    session->last = NULL;
}

/* Whole outputs of the largest batch, for the rows of its pieces, and where the pieces' inputs
 * lie. */
static enum status make_gathered(struct session *session, int most, struct error *err)
{
    session->gathered = alloc_array(session->output_count, sizeof(struct tensor *));
    session->piece_inputs = alloc_array(session->input_count, sizeof(void *));
    session->input_rows = alloc_array(session->input_count, sizeof *session->input_rows);
    if (!session->gathered || !session->piece_inputs || !session->input_rows)
        return session_no_memory(err);
    for (size_t i = 0; i < session->input_count; i++) {
        const struct value *one = session->compiled[0].graph->inputs[i];
        const struct value *many = session->compiled[1].graph->inputs[i];
        if (!shape_equal(&one->shape, &many->shape)) /* else it is the same for all images */
            session->input_rows[i] = shape_count(&one->shape) * dtype_size(one->dtype);
    }
    for (size_t i = 0; i < session->output_count; i++) {
        struct shape shape = session->outputs[i].shape;
        shape.dims[0] = most;
        TRY(tensor_create(NULL, session->outputs[i].dtype, &shape, &session->gathered[i], err));
        memset(session->gathered[i]->data, 0, session->gathered[i]->bytes);
    }
    return STATUS_OK;
}

/* Every number of images is one run. */
static bool all_whole(const struct session *session)
{
    for (int n = 1; n <= largest(session); n++)
        if (session->piece[session->padded[n]] != session->padded[n])
            return false;
    return true;
}

static bool can_cut(const struct session *session)
{
    if (!session->ops->pieces_help || !session->info.batched || session->compiled_count < 2 ||
        session->compiled[0].size != 1)
        return false;
    for (size_t i = 0; i < session->compiled_count; i++)
        if (session->compiled[i].tail || session->info.batches[i].milliseconds <= 0)
            return false;
    return true;
}

/* Where more images seem to be quicker than fewer, the machine was most likely busy with something
 * else when the fewer were measured; believed, every image alone would run as two from then on.
 * Both are measured again, in turns, until they are in order. */
static enum status doubt_times(struct session *session, struct error *err)
{
    const struct session_batch *batches = session->info.batches;
    for (size_t i = 0; i + 1 < session->compiled_count; i++)
        for (int again = 0; again < DOUBTS && batches[i + 1].milliseconds < batches[i].milliseconds;
             again++) {
            TRY(session_measure_again(session, i, err));
            TRY(session_measure_again(session, i + 1, err));
        }
    return STATUS_OK;
}

static void plan(struct session *session, double *cost)
{
    find_exact(session, largest(session), cost, session->piece);
    choose_padding(session, cost);
}

/* Measures all sizes in turns, again and again, until the plan that follows has stood for a few
 * rounds: a plan that one disturbed measurement makes would hold for as long as the session
 * lives. previous: of padded and piece, one after the other. */
static enum status settle(struct session *session, double *cost, int *previous, struct error *err)
{
    const size_t count = (size_t)largest(session) + 1, bytes = count * sizeof *previous;
    const int64_t start = clock_now();
    double ms = 0, before = 0,
           done = PROGRESS_ROUND; /* of session_create; how many rounds come is not known */
    for (int standing = 0; standing < STANDING;) {
        plan(session, cost);
        memcpy(previous, session->padded, bytes);
        memcpy(previous + count, session->piece, bytes);
        if (ms > 0 && ms + (ms - before) > SETTLE_MS)
            break;
        before = ms;
        const double next = (done + 1) / 2;
        TRY(session_measure_round(session, done, next, err));
        done = next;
        plan(session, cost);
        ms = clock_ms(clock_now() - start);
        const bool stands = memcmp(previous, session->padded, bytes) == 0 &&
                            memcmp(previous + count, session->piece, bytes) == 0;
        standing = stands ? standing + 1 : 0;
    }
    return STATUS_OK;
}

static enum status cut(struct session *session, int most, double *cost, struct error *err)
{
    bool used[SESSION_MAX_BATCHES] = {false};
    TRY(doubt_times(session, err));
    plan(session, cost);
    if (all_whole(session))
        return STATUS_OK;
    mark_used(session, used);
    note_pieces(session, cost);
    TRY(make_gathered(session, most, err));
    drop_unused(session, used);
    TRY(session->ops->reserve(session->backend, err));
    size_t gathered = 0;
    for (size_t i = 0; i < session->output_count; i++)
        gathered += session->gathered[i]->bytes;
    session->info.activation_bytes = 0;
    for (size_t i = 0; i < session->info.batch_count; i++)
        if (session->info.batches[i].activation_bytes > session->info.activation_bytes)
            session->info.activation_bytes = session->info.batches[i].activation_bytes;
    session->info.activation_bytes += gathered;
    return STATUS_OK;
}

enum status session_cut_batches(struct session *session, bool known, struct error *err)
{
    const int most = largest(session);
    session->largest = most;
    for (size_t i = 0; i < session->info.batch_count; i++)
        session->info.batches[i].piece = session->info.batches[i].size;
    if (!can_cut(session))
        return known ? STATUS_OK : session_measure_round(session, PROGRESS_ROUND, 1, err);
    const size_t count = (size_t)most + 1;
    session->piece = alloc_array(count, sizeof *session->piece);
    session->padded = alloc_array(count, sizeof *session->padded);
    double *cost = alloc_array(count, sizeof *cost);
    int *previous = alloc_array(2 * count, sizeof *previous);
    enum status status =
        session->piece && session->padded && cost && previous ? STATUS_OK : session_no_memory(err);
    if (status == STATUS_OK && !known)
        status = settle(session, cost, previous, err);
    if (status == STATUS_OK)
        status = cut(session, most, cost, err);
    free(previous);
    free(cost);
    return status;
}

/* Rows of the outputs of a piece behind those that are there already. */
static void gather(struct session *session, const struct tensor *const *outputs, int done,
                   int images)
{
    for (size_t i = 0; i < session->output_count; i++) {
        struct tensor *whole = session->gathered[i];
        const size_t row = outputs[i]->bytes / (size_t)images;
        if (row)
            memcpy((char *)whole->data + row * (size_t)done, outputs[i]->data,
                   row * (size_t)images);
        whole->shape.dims[0] = done + images;
        whole->bytes = row * (size_t)(done + images);
    }
}

enum status session_run_pieces(struct session *session, int batch, const void *const *inputs,
                               const struct tensor **outputs, struct error *err)
{
    int left = session->padded[batch];
    for (int done = 0; done < batch;) {
        struct compiled *c = &session->compiled[index_of(session, session->piece[left])];
        const int images = c->size < batch - done ? c->size : batch - done;
        for (size_t i = 0; i < session->input_count; i++)
            session->piece_inputs[i] =
                (const char *)inputs[i] + session->input_rows[i] * (size_t)done;
        TRY(compiled_run(session, c, images, session->piece_inputs, outputs, err));
        gather(session, outputs, done, images);
        left -= c->size;
        done += images;
    }
    for (size_t i = 0; i < session->output_count; i++)
        outputs[i] = session->gathered[i];
    return STATUS_OK;
}
