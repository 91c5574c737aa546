/* The batcher, event by event: exact compositions, close reasons, tickets, with a scripted clock.
 *
 * Items are single letters, so that a batch reads as a word. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "server/schedule/policy/batcher.h"

static char letters[256];
static struct batch_item entries[256];

static void *item(char letter)
{
    letters[(unsigned char)letter] = letter;
    return &letters[(unsigned char)letter];
}

static struct batch_item *entry(char letter)
{
    struct batch_item *entry = &entries[(unsigned char)letter];
    entry->owner = item(letter);
    return entry;
}

/* A batcher and what the script needs to know of its images. */
struct script {
    struct batcher *batcher;
    int64_t now;
    struct batch_slot slots[256]; /* by letter */
    struct batch batch;           /* the last one taken */
    char taken[BATCHER_MAX_BATCH + 1];
};

static struct script begin(int max_batch, int lanes, int buffers)
{
    struct script script = {.now = 1000};
    script.batcher = batcher_create(&(struct batcher_config){.max_batch = max_batch,
                                                             .capacity = max_batch,
                                                             .buffers = buffers,
                                                             .lanes = lanes,
                                                             .depth = 1,
                                                             .max_images = 64});
    cr_assert_not_null(script.batcher);
    return script;
}

static void admit(struct script *script, const char *images)
{
    for (; *images; images++)
        batcher_admit(script->batcher, entry(*images), 0, script->now);
}

/* Admitted, granted a ticket and claimed, in this order. */
static void prepare(struct script *script, const char *images)
{
    admit(script, images);
    for (; *images; images++) {
        cr_assert_geq(batcher_grant(script->batcher) + batcher_counts(script->batcher).granted, 1,
                      "no ticket for '%c'", *images);
        cr_assert_eq(batcher_claim(script->batcher, true, script->now), item(*images));
    }
}

static void reserve(struct script *script, const char *images)
{
    for (; *images; images++)
        script->slots[(unsigned char)*images] = batcher_reserve(script->batcher, entry(*images));
}

static void commit(struct script *script, const char *images)
{
    for (; *images; images++)
        batcher_commit(script->batcher, script->slots[(unsigned char)*images], script->now);
}

static void abandon(struct script *script, const char *images)
{
    for (; *images; images++)
        batcher_abandon(script->batcher, script->slots[(unsigned char)*images]);
}

/* From nothing to ready slots. */
static void ready(struct script *script, const char *images)
{
    prepare(script, images);
    reserve(script, images);
    commit(script, images);
}

static void idle(struct script *script, int lane)
{
    batcher_lane_idle(script->batcher, lane);
}

/* The letters of the batch a lane gets now, in slot order; "" for none. */
static const char *take_with(struct script *script, int lane)
{
    script->taken[0] = '\0';
    if (!batcher_take(script->batcher, lane, script->now, &script->batch))
        return script->taken;
    for (int i = 0; i < script->batch.count; i++)
        script->taken[i] = *(const char *)script->batch.items[i]->owner;
    script->taken[script->batch.count] = '\0';
    return script->taken;
}

static const char *take(struct script *script)
{
    return take_with(script, 0);
}

static void done(struct script *script)
{
    batcher_release(script->batcher, &script->batch, false);
    batcher_answered(script->batcher, (size_t)script->batch.count);
}

static void end(struct script *script)
{
    batcher_free(script->batcher);
}

Test(batcher, one_image_on_an_idle_device_is_taken_at_once)
{
    struct script s = begin(8, 1, 3);
    idle(&s, 0);
    prepare(&s, "a");
    reserve(&s, "a");
    cr_assert_str_eq(take(&s), "", "it is not written yet");
    cr_assert_not(batcher_can_take(s.batcher));
    s.now = 1500;
    commit(&s, "a");
    cr_assert(batcher_can_take(s.batcher));
    cr_assert_str_eq(take(&s), "a");
    cr_assert_eq(s.batch.reason, BATCH_IDLE_DEVICE);
    end(&s);
}

Test(batcher, a_batch_grows_while_the_device_is_busy)
{
    struct script s = begin(8, 1, 3);
    ready(&s, "abc");
    cr_assert_not(batcher_can_take(s.batcher), "no lane is idle");
    cr_assert_eq(batcher_should_close(s.batcher), BATCH_OPEN);
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "abc");
    cr_assert_eq(s.batch.reason, BATCH_IDLE_DEVICE);
    end(&s);
}

Test(batcher, the_last_slot_closes_a_batch_before_it_is_written)
{
    struct script s = begin(2, 1, 3);
    prepare(&s, "abc");
    reserve(&s, "ab");
    cr_assert_eq(batcher_counts(s.batcher).buffers[BUFFER_CLOSED], 1);
    reserve(&s, "c");
    cr_assert_neq(s.slots['c'].buffer, s.slots['a'].buffer, "c goes to the next batch");
    commit(&s, "abc");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "ab");
    cr_assert_eq(s.batch.reason, BATCH_FULL);
    done(&s);
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "c");
    cr_assert_eq(s.batch.reason, BATCH_IDLE_DEVICE);
    end(&s);
}

Test(batcher, a_closed_batch_waits_for_its_writers)
{
    struct script s = begin(8, 1, 3);
    prepare(&s, "abc");
    reserve(&s, "ab");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "");
    commit(&s, "b"); /* ready: closes for the idle lane, with a still being written */
    reserve(&s, "c");
    cr_assert_neq(s.slots['c'].buffer, s.slots['a'].buffer);
    commit(&s, "c");
    cr_assert_str_eq(take(&s), "", "the lane is promised to the batch of a");
    commit(&s, "a");
    cr_assert_str_eq(take(&s), "ab");
    end(&s);
}

Test(batcher, a_full_batch_overtakes_one_that_is_still_written)
{
    struct script s = begin(2, 1, 4);
    prepare(&s, "abcd");
    reserve(&s, "abcd");
    commit(&s, "acd");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "cd", "an idle device does not wait for b");
    commit(&s, "b");
    done(&s);
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "ab");
    end(&s);
}

Test(batcher, closed_batches_run_in_the_order_they_closed)
{
    struct script s = begin(2, 1, 4);
    ready(&s, "abcdef");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "ab");
    done(&s);
    ready(&s, "gh"); /* in the buffer that was first */
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "cd");
    done(&s);
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "ef");
    done(&s);
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "gh");
    end(&s);
}

Test(batcher, a_slot_abandoned_in_a_forming_batch_is_used_again)
{
    struct script s = begin(4, 1, 3);
    prepare(&s, "abcd");
    reserve(&s, "abc");
    abandon(&s, "b");
    reserve(&s, "d");
    cr_assert_eq(s.slots['d'].slot, s.slots['b'].slot);
    commit(&s, "acd");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "adc");
    cr_assert_eq(s.batch.slots[1], 1);
    end(&s);
}

Test(batcher, a_slot_abandoned_in_a_closed_batch_leaves_a_gap)
{
    struct script s = begin(4, 1, 3);
    prepare(&s, "abcd");
    reserve(&s, "abcd");
    commit(&s, "acd");
    abandon(&s, "b");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "acd");
    cr_assert_eq(s.batch.reason, BATCH_FULL);
    cr_assert_eq(s.batch.slots[0], 0);
    cr_assert_eq(s.batch.slots[1], 2);
    cr_assert_eq(s.batch.slots[2], 3);
    end(&s);
}

Test(batcher, a_batch_of_which_nothing_is_left_frees_its_buffer)
{
    struct script s = begin(2, 1, 3);
    idle(&s, 0);
    prepare(&s, "abc");
    reserve(&s, "ab");
    cr_assert_eq(batcher_counts(s.batcher).buffers[BUFFER_CLOSED], 1);
    abandon(&s, "ab");
    cr_assert_eq(batcher_counts(s.batcher).buffers[BUFFER_CLOSED], 0);
    cr_assert_eq(batcher_counts(s.batcher).buffers[BUFFER_FREE], 3);
    cr_assert_str_eq(take(&s), "");
    reserve(&s, "c");
    abandon(&s, "c"); /* forming and empty */
    cr_assert_eq(batcher_counts(s.batcher).buffers[BUFFER_FREE], 3);
    ready(&s, "d");
    cr_assert_str_eq(take(&s), "d");
    end(&s);
}

Test(batcher, an_emptied_batch_sets_the_lane_free_for_the_next_one)
{
    struct script s = begin(2, 1, 3);
    idle(&s, 0);
    prepare(&s, "abc");
    reserve(&s, "abc"); /* ab is full and promised to the lane, c forms */
    commit(&s, "c");
    cr_assert_str_eq(take(&s), "");
    abandon(&s, "ab");
    cr_assert_str_eq(take(&s), "c");
    cr_assert_eq(s.batch.reason, BATCH_IDLE_DEVICE);
    end(&s);
}

Test(batcher, a_lane_between_batches_does_not_close_one_early)
{
    struct script s = begin(4, 1, 3);
    idle(&s, 0);
    ready(&s, "a");
    cr_assert_str_eq(take(&s), "a");
    done(&s); /* the buffer is free, but the lane still answers */
    ready(&s, "b");
    cr_assert_eq(batcher_counts(s.batcher).buffers[BUFFER_CLOSED], 0);
    ready(&s, "c");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "bc");
    end(&s);
}

Test(batcher, two_lanes_pull_from_one_queue)
{
    struct script s = begin(2, 2, 4);
    idle(&s, 0);
    idle(&s, 1);
    ready(&s, "a");
    cr_assert_str_eq(take_with(&s, 0), "a");
    const struct batch first = s.batch;
    ready(&s, "b");
    cr_assert_str_eq(take_with(&s, 1), "b", "the second lane was idle");
    ready(&s, "cd");
    ready(&s, "e");
    cr_assert_not(batcher_can_take(s.batcher));
    batcher_release(s.batcher, &s.batch, false);
    idle(&s, 1);
    cr_assert_str_eq(take_with(&s, 1), "cd");
    batcher_release(s.batcher, &first, false);
    idle(&s, 0);
    cr_assert_str_eq(take_with(&s, 0), "e");
    end(&s);
}

Test(batcher, with_two_idle_lanes_two_forming_batches_close)
{
    struct script s = begin(4, 2, 4);
    prepare(&s, "abc");
    reserve(&s, "ab");
    idle(&s, 0);
    idle(&s, 1);
    commit(&s, "a"); /* closes ab, waits for b */
    reserve(&s, "c");
    commit(&s, "c"); /* the other lane takes it meanwhile */
    cr_assert_str_eq(take_with(&s, 0), "c");
    commit(&s, "b");
    cr_assert_str_eq(take_with(&s, 1), "ab");
    end(&s);
}

/* A lane that computes `streams` images at the same time. */
static struct script begin_streams(int streams, int workers)
{
    struct script s = {.now = 1000};
    s.batcher = batcher_create(&(struct batcher_config){.max_batch = 8,
                                                        .capacity = 8,
                                                        .buffers = streams + 3,
                                                        .lanes = 1,
                                                        .depth = streams + 1,
                                                        .workers = workers,
                                                        .max_images = 64});
    cr_assert_not_null(s.batcher);
    const struct session_batch size = {.size = 8, .milliseconds = 8};
    const struct session_batch sizes[] = {{.size = 1, .milliseconds = 1}, size};
    latency_init(batcher_latency(s.batcher, 0), sizes, COUNT_OF(sizes));
    batcher_latency(s.batcher, 0)->streams = streams;
    return s;
}

static bool take_beside(struct script *s)
{
    return batcher_take_ahead(s->batcher, 0, AHEAD_BESIDE, s->now, &s->batch);
}

Test(batcher, streams_take_images_one_by_one_if_all_have_one)
{
    struct script s = begin_streams(4, 0);
    idle(&s, 0);
    ready(&s, "a");
    cr_assert_str_eq(take(&s), "a");
    ready(&s, "bc");
    cr_expect_not(batcher_fills_lanes(s.batcher));
    cr_expect_not(take_beside(&s));
    prepare(&s, "d");
    reserve(&s, "d");
    cr_expect(batcher_fills_lanes(s.batcher));
    commit(&s, "d");
    for (const char *c = "bcd"; *c; c++) {
        cr_assert(take_beside(&s));
        cr_expect_eq(s.batch.count, 1);
        cr_expect_eq(s.batch.items[0], entry(*c));
    }
    end(&s);
}

/* Threads without an image would be idle. */
Test(batcher, images_too_few_for_all_streams_run_as_a_batch)
{
    struct script s = begin_streams(4, 0);
    const struct session_batch sizes[] = {{.size = 1, .milliseconds = 1},
                                          {.size = 8, .milliseconds = 2}};
    latency_init(batcher_latency(s.batcher, 0), sizes, COUNT_OF(sizes));
    batcher_latency(s.batcher, 0)->streams = 4;
    ready(&s, "abc");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "abc");
    done(&s);
    ready(&s, "defg");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "d");
    end(&s);
}

/* An image cannot be overtaken after it has left the queue, so few leave it early. */
Test(batcher, few_images_wait_for_a_busy_stream)
{
    enum { STREAMS = 2, DEPTH = STREAMS + 1, PASSES = 400 };
    struct script s = begin_streams(STREAMS, 2);
    struct batch running[DEPTH];
    int first = 0, count = 0;
    idle(&s, 0);
    admit(&s, "abcdefghij");
    for (int pass = 0; pass < PASSES; pass++) {
        size_t prepared = batcher_grant(s.batcher);
        for (; prepared > 0; prepared--) {
            const char letter[] = {*(char *)batcher_claim(s.batcher, true, s.now), 0};
            reserve(&s, letter);
            commit(&s, letter);
        }
        if (pass == PASSES - 1)
            cr_expect_leq(batcher_counts(s.batcher).slots, 1);
        while (count == 0 ? *take(&s) : count < DEPTH && take_beside(&s))
            running[(first + count++) % DEPTH] = s.batch;
        cr_assert_gt(count, 0);
        s.batch = running[first];
        first = (first + 1) % DEPTH;
        done(&s);
        admit(&s, (char[]){*(char *)s.batch.items[0]->owner, 0});
        if (--count == 0)
            idle(&s, 0);
    }
    end(&s);
}

Test(batcher, tickets_are_never_more_than_slots_that_are_sure)
{
    /* 3 buffers of 4; the idle lane may close one early with a single image: 12 - 3. */
    struct script s = begin(4, 1, 3);
    idle(&s, 0);
    admit(&s, "abcdefghijklmnop");
    cr_assert_eq(batcher_grant(s.batcher), 9);
    cr_assert_eq(batcher_grant(s.batcher), 0);
    for (const char *c = "abcdefghi"; *c; c++)
        cr_assert_eq(batcher_claim(s.batcher, true, s.now), item(*c));

    /* The worst case: the first closes alone. All other tickets still find their slots. */
    reserve(&s, "a");
    commit(&s, "a");
    cr_assert_str_eq(take(&s), "a");
    cr_assert_eq(batcher_grant(s.batcher), 0);
    reserve(&s, "bcdefghi");
    cr_assert_eq(batcher_counts(s.batcher).buffers[BUFFER_FREE], 0);
    cr_assert_eq(batcher_grant(s.batcher), 0, "everything is taken");
    commit(&s, "bcdefghi");
    done(&s);
    cr_assert_eq(batcher_grant(s.batcher), 4, "a's buffer came back");
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "bcde");
    end(&s);
}

Test(batcher, no_tickets_without_images)
{
    struct script s = begin(4, 1, 3);
    cr_assert_eq(batcher_grant(s.batcher), 0);
    admit(&s, "ab");
    cr_assert_eq(batcher_grant(s.batcher), 2);
    admit(&s, "c");
    cr_assert_eq(batcher_grant(s.batcher), 1);
    cr_assert_eq(batcher_grant(s.batcher), 0);
    end(&s);
}

Test(batcher, large_images_leave_a_thread_for_small_ones)
{
    struct script s = begin(4, 1, 4);
    batcher_free(s.batcher);
    s.batcher = batcher_create(&(struct batcher_config){.max_batch = 4,
                                                        .capacity = 4,
                                                        .buffers = 4,
                                                        .lanes = 1,
                                                        .depth = 1,
                                                        .max_images = 64,
                                                        .larges = 2});
    for (const char *c = "ABCD"; *c; c++)
        entry(*c)->is_large = true;
    admit(&s, "ABCD");
    cr_assert_eq(batcher_grant(s.batcher), 2, "no more at a time");
    cr_assert_eq(batcher_claim(s.batcher, true, s.now), item('A'));
    cr_assert_eq(batcher_claim(s.batcher, true, s.now), item('B'));
    cr_assert_eq(batcher_grant(s.batcher), 0);
    s.now += 10;
    admit(&s, "xy");
    cr_assert_eq(batcher_grant(s.batcher), 2);
    cr_assert_eq(batcher_claim(s.batcher, true, s.now), item('x'), "though C is older");

    /* With a slot a large image still holds its thread. */
    reserve(&s, "A");
    cr_assert_eq(batcher_grant(s.batcher), 0);
    commit(&s, "A");
    batcher_end_large(s.batcher);
    cr_assert_eq(batcher_grant(s.batcher), 1);
    cr_assert_eq(batcher_claim(s.batcher, true, s.now), item('C'), "older than y");
    batcher_drop(s.batcher);
    batcher_end_large(s.batcher);
    batcher_answered(s.batcher, 1);

    /* A ticket whose image was removed does not go to a large one that must wait. */
    cr_assert_eq(batcher_grant(s.batcher), 1);
    cr_assert_eq(batcher_claim(s.batcher, true, s.now), item('D'));
    cr_assert(batcher_remove(s.batcher, entry('y')));
    batcher_answered(s.batcher, 1);
    entry('E')->is_large = true;
    admit(&s, "E");
    cr_assert_null(batcher_claim(s.batcher, true, s.now));
    cr_assert_eq(batcher_grant(s.batcher), 0);
    batcher_end_large(s.batcher);
    cr_assert_eq(batcher_grant(s.batcher), 1);

    /* Where only large ones wait, and it may be none, the ticket stays. */
    cr_assert(batcher_counts(s.batcher).large > 0);
    cr_assert_null(batcher_claim(s.batcher, false, s.now));
    cr_assert_eq(batcher_grant(s.batcher), 0);
    cr_assert_eq(batcher_claim(s.batcher, true, s.now), item('E'));
    cr_assert(batcher_counts(s.batcher).large == 0);
    for (const char *c = "ABCDE"; *c; c++)
        entry(*c)->is_large = false;
    batcher_free(s.batcher);
}

Test(batcher, an_image_that_does_not_decode_gives_its_ticket_back)
{
    struct script s = begin(1, 1, 3);
    idle(&s, 0);
    admit(&s, "abcde");
    cr_assert_eq(batcher_grant(s.batcher), 3);
    cr_assert_eq(batcher_claim(s.batcher, true, s.now), item('a'));
    batcher_drop(s.batcher);
    batcher_answered(s.batcher, 1);
    cr_assert_eq(batcher_grant(s.batcher), 1);
    struct batcher_counts counts = batcher_counts(s.batcher);
    cr_assert_eq(counts.admitted, 4);
    cr_assert_eq(counts.queued, 4);
    cr_assert_eq(counts.granted, 3);
    cr_assert_eq(counts.preparing, 0);
    end(&s);
}

Test(batcher, a_batch_size_of_one_closes_full)
{
    struct script s = begin(1, 1, 3);
    idle(&s, 0);
    ready(&s, "a");
    cr_assert_str_eq(take(&s), "a");
    cr_assert_eq(s.batch.reason, BATCH_FULL);
    ready(&s, "bc");
    done(&s);
    idle(&s, 0);
    cr_assert_str_eq(take(&s), "b");
    end(&s);
}

Test(batcher, a_cut_queue_leaves_tickets_that_find_nothing)
{
    struct script s = begin(4, 1, 3);
    admit(&s, "abc");
    cr_assert_eq(batcher_grant(s.batcher), 3);
    cr_assert_eq(batcher_claim(s.batcher, true, s.now), item('a'));
    cr_assert_eq(batcher_pop(s.batcher), item('b'));
    cr_assert_eq(batcher_pop(s.batcher), item('c'));
    cr_assert_null(batcher_pop(s.batcher));
    cr_assert_null(batcher_claim(s.batcher, true, s.now));
    cr_assert_null(batcher_claim(s.batcher, true, s.now));
    struct batcher_counts counts = batcher_counts(s.batcher);
    cr_assert_eq(counts.admitted, 3);
    cr_assert_eq(counts.granted, 0);
    cr_assert_eq(counts.preparing, 1);
    end(&s);
}

Test(batcher, the_queue_is_a_ring_in_order)
{
    struct script s = begin(8, 1, 3);
    idle(&s, 0);
    for (int round = 0; round < 40; round++) {
        ready(&s, "abcde");
        cr_assert_str_eq(take(&s), "abcde", "round %d", round);
        done(&s);
        idle(&s, 0);
    }
    cr_assert_eq(batcher_counts(s.batcher).admitted, 0);
    end(&s);
}

Test(batcher, gaps_are_closed_with_the_fewest_copies)
{
    static const struct {
        const char *name;
        const char *slots, *moves, *items; /* items: after, named a, b, c … in slot order before */
    } cases[] = {
        {"no gap", "012", "", "abc"},
        {"one gap", "023", "3>1", "acb"},
        {"gap at the start", "12", "2>0", "ba"},
        {"all shifted", "23", "3>02>1", "ba"},
        {"two gaps", "0357", "7>15>2", "adcb"},
        {"alone at the end", "7", "7>0", "a"},
        {"gap at the end is none", "01", "", "ab"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct batch batch = {.count = (int)strlen(cases[i].slots)};
        for (int k = 0; k < batch.count; k++) {
            batch.slots[k] = cases[i].slots[k] - '0';
            batch.items[k] = entry((char)('a' + k));
        }
        struct batch_move moves[8];
        int count = batch_compact(&batch, moves);
        char text[64] = "", items[16] = "";
        for (int k = 0; k < count; k++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%d>%d", moves[k].from,
                     moves[k].to);
        for (int k = 0; k < batch.count; k++) {
            items[k] = *(const char *)batch.items[k]->owner;
            cr_assert_eq(batch.slots[k], k, "%s", cases[i].name);
        }
        cr_assert_str_eq(text, cases[i].moves, "%s: %s", cases[i].name, text);
        cr_assert_str_eq(items, cases[i].items, "%s: %s", cases[i].name, items);
    }
}

/* --- random walks --- */

/* How a walk's lanes run: which sizes are compiled, and what they cost. */
struct walk_shape {
    int max_batch, lanes, capacity;
    int size_count, sizes[5];
    double milliseconds[5];
    int depth; /* batches of a lane at a time */
};

enum { WALK_IMAGES = 300, WALK_INSIDE = 24, WALK_LANES = 4, WALK_MEMORY = 16, WALK_BUFFERS = 12 };

struct walk_image {
    struct batch_item entry;
    int outcomes;
};

/* A batcher, its lanes and workers, and the memory of its buffers: which image lies in each slot,
 * and which lane's batch runs there (owner: 0 nobody or the batcher, else one more than its place
 * in batches). */
struct walk {
    const struct walk_shape *shape;
    struct batcher *batcher;
    struct walk_image images[WALK_IMAGES];
    struct walk_image *memory[WALK_BUFFERS][WALK_MEMORY];
    int owner[WALK_BUFFERS][WALK_MEMORY];
    enum { LANE_BUSY, LANE_IDLE, LANE_RUNS } lanes[WALK_LANES];
    struct batch batches[WALK_LANES * BATCHER_MAX_DEPTH];
    bool has[WALK_LANES * BATCHER_MAX_DEPTH];
    struct walk_image *claimed[64], *writing[256];
    struct batch_slot slots[256];
    size_t claimed_count, writing_count;
    int admitted, finished;
    int64_t now;
};

static void walk_end(struct walk *walk, struct walk_image *image)
{
    image->outcomes++;
    walk->finished++;
    batcher_answered(walk->batcher, 1);
}

static void walk_admit(struct walk *walk)
{
    if (walk->admitted == WALK_IMAGES || batcher_counts(walk->batcher).admitted == WALK_INSIDE)
        return;
    struct walk_image *image = &walk->images[walk->admitted++];
    image->entry = (struct batch_item){
        .owner = image,
        .client = (uint64_t)(rand() % 5),
        .priority = rand() % (QUEUE_PRIORITIES + 1),
        .bytes = (size_t)(rand() % 1000),
    };
    batcher_admit(walk->batcher, &image->entry, rand() % 2 ? rand() : 0, walk->now);
}

static void walk_remove(struct walk *walk)
{
    struct walk_image *image = &walk->images[rand() % WALK_IMAGES];
    bool was_queued = image->entry.is_queued;
    cr_assert_eq(batcher_remove(walk->batcher, &image->entry), was_queued);
    if (was_queued)
        walk_end(walk, image);
}

static void walk_claim(struct walk *walk)
{
    if (batcher_counts(walk->batcher).granted == 0)
        return;
    struct walk_image *image = batcher_claim(walk->batcher, true, walk->now);
    if (image)
        walk->claimed[walk->claimed_count++] = image;
}

static void walk_prepared(struct walk *walk)
{
    if (walk->claimed_count == 0)
        return;
    struct walk_image *image = walk->claimed[--walk->claimed_count];
    if (rand() % 8 == 0) {
        batcher_drop(walk->batcher);
        walk_end(walk, image);
        return;
    }
    struct batch_slot slot = batcher_reserve(walk->batcher, &image->entry);
    cr_assert_eq(walk->owner[slot.buffer][slot.slot], 0, "a slot that a lane runs is given away");
    walk->writing[walk->writing_count] = image;
    walk->slots[walk->writing_count++] = slot;
}

static void walk_written(struct walk *walk)
{
    if (walk->writing_count == 0)
        return;
    size_t which = (size_t)rand() % walk->writing_count;
    struct walk_image *image = walk->writing[which];
    struct batch_slot slot = walk->slots[which];
    cr_assert_eq(walk->owner[slot.buffer][slot.slot], 0, "a slot is run while it is written");
    walk->memory[slot.buffer][slot.slot] = image;
    if (rand() % 8 == 0) {
        batcher_abandon(walk->batcher, slot);
        walk_end(walk, image);
    } else {
        batcher_commit(walk->batcher, slot, walk->now);
    }
    walk->writing[which] = walk->writing[--walk->writing_count];
    walk->slots[which] = walk->slots[walk->writing_count];
}

/* A lane works on its batch as lane.c does: drops some, closes the gaps, runs what is left. */
static void walk_take(struct walk *walk, int lane, bool is_ahead)
{
    int place = lane * BATCHER_MAX_DEPTH;
    place += walk->has[place];
    if (is_ahead && walk->has[place])
        return;
    struct batch *batch = &walk->batches[place];
    if (is_ahead
            ? !batcher_take_ahead(walk->batcher, lane, (enum ahead)(rand() % 3), walk->now, batch)
            : !batcher_take(walk->batcher, lane, walk->now, batch))
        return;
    walk->has[place] = true;
    walk->lanes[lane] = LANE_RUNS;
    cr_assert_eq(batch->lane, lane);
    int kept = 0;
    for (int i = 0; i < batch->count; i++) {
        struct walk_image *image = batch->items[i]->owner;
        cr_assert_eq(walk->memory[batch->buffer][batch->slots[i]], image, "another image's slot");
        if (rand() % 16 == 0) {
            walk_end(walk, image);
            continue;
        }
        batch->slots[kept] = batch->slots[i];
        batch->items[kept++] = &image->entry;
    }
    batch->count = kept;
    if (kept == 0)
        return;
    struct batch_move moves[BATCHER_MAX_BATCH];
    int count = batch_compact(batch, moves);
    for (int i = 0; i < count; i++) {
        cr_assert_eq(walk->owner[batch->buffer][moves[i].to], 0);
        walk->memory[batch->buffer][moves[i].to] = walk->memory[batch->buffer][moves[i].from];
    }
    int padded = latency_padded(batcher_latency(walk->batcher, lane), batch->count);
    cr_assert_leq(batch->first + padded, walk->shape->capacity, "padding beyond the memory");
    for (int i = 0; i < padded; i++) {
        cr_assert_eq(walk->owner[batch->buffer][batch->first + i], 0, "two lanes in one slot");
        walk->owner[batch->buffer][batch->first + i] = place + 1;
    }
}

static void walk_ran(struct walk *walk, int lane)
{
    int place = lane * BATCHER_MAX_DEPTH, other = place + 1;
    if (!walk->has[place] || (walk->has[other] && rand() % 4 == 0)) {
        place = other;
        other = lane * BATCHER_MAX_DEPTH;
    }
    const struct batch *batch = &walk->batches[place];
    for (int i = 0; i < batch->count; i++)
        cr_assert_eq(walk->memory[batch->buffer][batch->first + i], batch->items[i]->owner,
                     "overwritten while it ran");
    for (int i = 0; i < WALK_MEMORY; i++)
        if (walk->owner[batch->buffer][i] == place + 1)
            walk->owner[batch->buffer][i] = 0;
    walk->has[place] = false;
    if (!walk->has[other])
        walk->lanes[lane] = LANE_BUSY;
    if (rand() % 8 == 0) {
        batcher_release(walk->batcher, batch, true);
        return;
    }
    for (int i = 0; i < batch->count; i++)
        walk_end(walk, batch->items[i]->owner);
    latency_observe(batcher_latency(walk->batcher, lane), batch->count ? batch->count : 1,
                    1 + rand() % 3000000);
    batcher_release(walk->batcher, batch, false);
}

static void walk_lane(struct walk *walk, int lane)
{
    switch (walk->lanes[lane]) {
    case LANE_BUSY:
        batcher_lane_idle(walk->batcher, lane);
        walk->lanes[lane] = LANE_IDLE;
        break;
    case LANE_IDLE:
        walk_take(walk, lane, false);
        break;
    case LANE_RUNS:
        if (walk->shape->depth > 1 && rand() % 2)
            walk_take(walk, lane, true);
        else
            walk_ran(walk, lane);
        break;
    }
}

/* Random events in any legal order: every image comes out exactly once, no reserve is ever without
 * a slot (asserted inside), no slot is anybody else's, and at the end nothing is left anywhere. */
static void run_walk(unsigned seed, const struct walk_shape *shape)
{
    static struct walk walk;
    memset(&walk, 0, sizeof walk);
    walk.shape = shape;
    const int buffers = shape->lanes * shape->depth + 2;
    walk.batcher = batcher_create(&(struct batcher_config){.max_batch = shape->max_batch,
                                                           .capacity = shape->capacity,
                                                           .buffers = buffers,
                                                           .lanes = shape->lanes,
                                                           .depth = shape->depth,
                                                           .max_images = WALK_INSIDE});
    struct session_batch batches[SESSION_MAX_BATCHES];
    for (int i = 0; i < shape->size_count; i++)
        batches[i] = (struct session_batch){shape->sizes[i], shape->milliseconds[i], 0};
    for (int lane = 0; lane < shape->lanes && shape->size_count > 0; lane++)
        latency_init(batcher_latency(walk.batcher, lane), batches, (size_t)shape->size_count);
    srand(seed);
    for (int step = 0; walk.finished < WALK_IMAGES; step++) {
        cr_assert_lt(step, 200000, "stuck at %d of %d", walk.finished, WALK_IMAGES);
        walk.now += rand() % 200000;
        batcher_grant(walk.batcher);
        switch (rand() % 8) {
        case 0:
        case 1:
            walk_admit(&walk);
            break;
        case 2:
            walk_claim(&walk);
            break;
        case 3:
            walk_prepared(&walk);
            break;
        case 4:
            walk_written(&walk);
            break;
        case 5:
            if (rand() % 8 == 0)
                walk_remove(&walk);
            break;
        default:
            walk_lane(&walk, rand() % shape->lanes);
        }
    }
    for (int i = 0; i < WALK_IMAGES; i++)
        cr_assert_eq(walk.images[i].outcomes, 1, "image %d came out %d times", i,
                     walk.images[i].outcomes);
    for (int place = 0; place < shape->lanes * BATCHER_MAX_DEPTH; place++)
        if (walk.has[place])
            batcher_release(walk.batcher, &walk.batches[place], false);
    struct batcher_counts counts = batcher_counts(walk.batcher);
    cr_assert_eq(counts.admitted + counts.queued + counts.bytes + counts.preparing + counts.slots +
                     counts.running,
                 0);
    cr_assert_eq(counts.buffers[BUFFER_FREE], buffers);
    batcher_free(walk.batcher);
}

Test(batcher, random_walks_lose_nothing_and_never_stick)
{
    static const struct walk_shape shapes[] = {
        {1, 1, 1, 1, {1}, {1}, 1},
        {2, 1, 2, 0, {0}, {0}, 1},
        {4, 1, 4, 3, {1, 2, 4}, {1, 1.1, 1.3}, 1},
        {8, 1, 8, 4, {1, 2, 4, 8}, {1, 2, 4, 8}, 1},
        {8, 2, 8, 4, {1, 2, 4, 8}, {1, 1.9, 3.5, 9}, 1},
        {1, 3, 1, 1, {1}, {1}, 1},
        {3, 2, 4, 3, {1, 2, 4}, {1, 2, 2.5}, 1},
        {7, 4, 8, 4, {1, 2, 4, 8}, {1, 2, 4, 8}, 1},
        {6, 3, 8, 2, {4, 8}, {1, 2}, 1},
        {1, 1, 1, 1, {1}, {1}, 2},
        {4, 1, 4, 3, {1, 2, 4}, {1, 1.1, 1.3}, 2},
        {8, 2, 8, 4, {1, 2, 4, 8}, {1, 1.9, 3.5, 9}, 2},
        {7, 4, 8, 4, {1, 2, 4, 8}, {1, 2, 4, 8}, 2},
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (unsigned seed = 1; seed <= 40; seed++)
            run_walk(seed, &shapes[i]);
}
