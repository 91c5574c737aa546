/* The batcher, event by event: exact compositions, close reasons, tickets, with a scripted clock.
 *
 * Items are single letters, so that a batch reads as a word. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/schedule/batcher.h"

static char letters[256];

static void *item(char letter)
{
    letters[(unsigned char)letter] = letter;
    return &letters[(unsigned char)letter];
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
    script.batcher = batcher_create(&(struct batcher_config){
        .max_batch = max_batch, .buffers = buffers, .lanes = lanes, .max_images = 64});
    cr_assert_not_null(script.batcher);
    return script;
}

static void admit(struct script *script, const char *images)
{
    for (; *images; images++)
        batcher_admit(script->batcher, item(*images));
}

/* Admitted, granted a ticket and claimed, in this order. */
static void prepare(struct script *script, const char *images)
{
    admit(script, images);
    for (; *images; images++) {
        cr_assert_geq(batcher_grant(script->batcher) + batcher_counts(script->batcher).granted, 1,
                      "no ticket for '%c'", *images);
        cr_assert_eq(batcher_claim(script->batcher), item(*images));
    }
}

static void reserve(struct script *script, const char *images)
{
    for (; *images; images++)
        script->slots[(unsigned char)*images] =
            batcher_reserve(script->batcher, item(*images), script->now);
}

static void commit(struct script *script, const char *images)
{
    for (; *images; images++)
        batcher_commit(script->batcher, script->slots[(unsigned char)*images], script->now);
}

static void abandon(struct script *script, const char *images)
{
    for (; *images; images++)
        batcher_abandon(script->batcher, script->slots[(unsigned char)*images], script->now);
}

/* From nothing to ready slots. */
static void ready(struct script *script, const char *images)
{
    prepare(script, images);
    reserve(script, images);
    commit(script, images);
}

static void idle(struct script *script)
{
    batcher_lane_idle(script->batcher, script->now);
}

/* The letters of the batch a lane gets now, in slot order; "" for none. */
static const char *take(struct script *script)
{
    script->taken[0] = '\0';
    if (!batcher_take(script->batcher, script->now, &script->batch))
        return script->taken;
    for (int i = 0; i < script->batch.count; i++)
        script->taken[i] = *(const char *)script->batch.items[i];
    script->taken[script->batch.count] = '\0';
    return script->taken;
}

static void done(struct script *script)
{
    batcher_done(script->batcher, script->batch.buffer);
    batcher_answered(script->batcher, (size_t)script->batch.count);
}

static void end(struct script *script)
{
    batcher_free(script->batcher);
}

Test(batcher, one_image_on_an_idle_device_is_taken_at_once)
{
    struct script s = begin(8, 1, 3);
    idle(&s);
    prepare(&s, "a");
    reserve(&s, "a");
    cr_assert_str_eq(take(&s), "", "it is not written yet");
    cr_assert_not(batcher_can_take(s.batcher, s.now));
    s.now = 1500;
    commit(&s, "a");
    cr_assert(batcher_can_take(s.batcher, s.now));
    cr_assert_str_eq(take(&s), "a");
    cr_assert_eq(s.batch.reason, BATCH_IDLE_DEVICE);
    cr_assert_eq(s.batch.opened, 1000);
    cr_assert_eq(s.batch.closed, 1500);
    end(&s);
}

Test(batcher, a_batch_grows_while_the_device_is_busy)
{
    struct script s = begin(8, 1, 3);
    ready(&s, "abc");
    cr_assert_not(batcher_can_take(s.batcher, s.now), "no lane is idle");
    cr_assert_eq(batcher_should_close(s.batcher, s.now), BATCH_OPEN);
    idle(&s);
    cr_assert_str_eq(take(&s), "abc");
    cr_assert_eq(s.batch.reason, BATCH_IDLE_DEVICE);
    end(&s);
}

Test(batcher, the_last_slot_closes_a_batch_before_it_is_written)
{
    struct script s = begin(2, 1, 3);
    prepare(&s, "abc");
    reserve(&s, "ab");
    cr_assert_eq(batcher_counts(s.batcher).closed_buffers, 1);
    reserve(&s, "c");
    cr_assert_neq(s.slots['c'].buffer, s.slots['a'].buffer, "c goes to the next batch");
    commit(&s, "abc");
    idle(&s);
    cr_assert_str_eq(take(&s), "ab");
    cr_assert_eq(s.batch.reason, BATCH_FULL);
    done(&s);
    idle(&s);
    cr_assert_str_eq(take(&s), "c");
    cr_assert_eq(s.batch.reason, BATCH_IDLE_DEVICE);
    end(&s);
}

Test(batcher, a_closed_batch_waits_for_its_writers)
{
    struct script s = begin(8, 1, 3);
    prepare(&s, "abc");
    reserve(&s, "ab");
    idle(&s);
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
    idle(&s);
    cr_assert_str_eq(take(&s), "cd", "an idle device does not wait for b");
    commit(&s, "b");
    done(&s);
    idle(&s);
    cr_assert_str_eq(take(&s), "ab");
    end(&s);
}

Test(batcher, closed_batches_run_in_the_order_they_closed)
{
    struct script s = begin(2, 1, 4);
    ready(&s, "abcdef");
    idle(&s);
    cr_assert_str_eq(take(&s), "ab");
    done(&s);
    ready(&s, "gh"); /* in the buffer that was first */
    idle(&s);
    cr_assert_str_eq(take(&s), "cd");
    done(&s);
    idle(&s);
    cr_assert_str_eq(take(&s), "ef");
    done(&s);
    idle(&s);
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
    idle(&s);
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
    idle(&s);
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
    idle(&s);
    prepare(&s, "abc");
    reserve(&s, "ab");
    cr_assert_eq(batcher_counts(s.batcher).closed_buffers, 1);
    abandon(&s, "ab");
    cr_assert_eq(batcher_counts(s.batcher).closed_buffers, 0);
    cr_assert_eq(batcher_counts(s.batcher).free_buffers, 3);
    cr_assert_str_eq(take(&s), "");
    reserve(&s, "c");
    abandon(&s, "c"); /* forming and empty */
    cr_assert_eq(batcher_counts(s.batcher).free_buffers, 3);
    ready(&s, "d");
    cr_assert_str_eq(take(&s), "d");
    end(&s);
}

Test(batcher, an_emptied_batch_sets_the_lane_free_for_the_next_one)
{
    struct script s = begin(2, 1, 3);
    idle(&s);
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
    idle(&s);
    ready(&s, "a");
    cr_assert_str_eq(take(&s), "a");
    done(&s); /* the buffer is free, but the lane still answers */
    ready(&s, "b");
    cr_assert_eq(batcher_counts(s.batcher).closed_buffers, 0);
    ready(&s, "c");
    idle(&s);
    cr_assert_str_eq(take(&s), "bc");
    end(&s);
}

Test(batcher, two_lanes_pull_from_one_queue)
{
    struct script s = begin(2, 2, 4);
    idle(&s);
    idle(&s);
    ready(&s, "a");
    cr_assert_str_eq(take(&s), "a");
    struct batch first = s.batch;
    ready(&s, "b");
    cr_assert_str_eq(take(&s), "b", "the second lane was idle");
    struct batch second = s.batch;
    ready(&s, "cd");
    ready(&s, "e");
    cr_assert_not(batcher_can_take(s.batcher, s.now));
    batcher_done(s.batcher, second.buffer);
    idle(&s);
    cr_assert_str_eq(take(&s), "cd");
    batcher_done(s.batcher, first.buffer);
    idle(&s);
    cr_assert_str_eq(take(&s), "e");
    end(&s);
}

Test(batcher, with_two_idle_lanes_two_forming_batches_close)
{
    struct script s = begin(4, 2, 4);
    prepare(&s, "abc");
    reserve(&s, "ab");
    idle(&s);
    idle(&s);
    commit(&s, "a"); /* closes ab, waits for b */
    reserve(&s, "c");
    commit(&s, "c"); /* the other lane takes it meanwhile */
    cr_assert_str_eq(take(&s), "c");
    commit(&s, "b");
    cr_assert_str_eq(take(&s), "ab");
    end(&s);
}

Test(batcher, tickets_are_never_more_than_slots_that_are_sure)
{
    /* 3 buffers of 4; the idle lane may close one early with a single image: 12 - 3. */
    struct script s = begin(4, 1, 3);
    idle(&s);
    admit(&s, "abcdefghijklmnop");
    cr_assert_eq(batcher_grant(s.batcher), 9);
    cr_assert_eq(batcher_grant(s.batcher), 0);
    for (const char *c = "abcdefghi"; *c; c++)
        cr_assert_eq(batcher_claim(s.batcher), item(*c));

    /* The worst case: the first closes alone. All other tickets still find their slots. */
    reserve(&s, "a");
    commit(&s, "a");
    cr_assert_str_eq(take(&s), "a");
    cr_assert_eq(batcher_grant(s.batcher), 0);
    reserve(&s, "bcdefghi");
    cr_assert_eq(batcher_counts(s.batcher).free_buffers, 0);
    cr_assert_eq(batcher_grant(s.batcher), 0, "everything is taken");
    commit(&s, "bcdefghi");
    done(&s);
    cr_assert_eq(batcher_grant(s.batcher), 4, "a's buffer came back");
    idle(&s);
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

Test(batcher, an_image_that_does_not_decode_gives_its_ticket_back)
{
    struct script s = begin(1, 1, 3);
    idle(&s);
    admit(&s, "abcde");
    cr_assert_eq(batcher_grant(s.batcher), 3);
    cr_assert_eq(batcher_claim(s.batcher), item('a'));
    batcher_give_up(s.batcher);
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
    idle(&s);
    ready(&s, "a");
    cr_assert_str_eq(take(&s), "a");
    cr_assert_eq(s.batch.reason, BATCH_FULL);
    ready(&s, "bc");
    done(&s);
    idle(&s);
    cr_assert_str_eq(take(&s), "b");
    end(&s);
}

Test(batcher, draining_is_a_reason_of_its_own)
{
    struct script s = begin(4, 1, 3);
    ready(&s, "ab");
    batcher_drain(s.batcher, s.now);
    idle(&s);
    cr_assert_str_eq(take(&s), "ab");
    cr_assert_eq(s.batch.reason, BATCH_DRAIN);
    done(&s);
    ready(&s, "cdef");
    idle(&s);
    cr_assert_str_eq(take(&s), "cdef");
    cr_assert_eq(s.batch.reason, BATCH_FULL, "full is full, also while draining");
    end(&s);
}

Test(batcher, a_cut_queue_leaves_tickets_that_find_nothing)
{
    struct script s = begin(4, 1, 3);
    admit(&s, "abc");
    cr_assert_eq(batcher_grant(s.batcher), 3);
    cr_assert_eq(batcher_claim(s.batcher), item('a'));
    cr_assert_eq(batcher_cut(s.batcher), item('b'));
    cr_assert_eq(batcher_cut(s.batcher), item('c'));
    cr_assert_null(batcher_cut(s.batcher));
    cr_assert_null(batcher_claim(s.batcher));
    cr_assert_null(batcher_claim(s.batcher));
    struct batcher_counts counts = batcher_counts(s.batcher);
    cr_assert_eq(counts.admitted, 3);
    cr_assert_eq(counts.granted, 0);
    cr_assert_eq(counts.preparing, 1);
    end(&s);
}

Test(batcher, the_queue_is_a_ring_in_order)
{
    struct script s = begin(8, 1, 3);
    idle(&s);
    for (int round = 0; round < 40; round++) {
        ready(&s, "abcde");
        cr_assert_str_eq(take(&s), "abcde", "round %d", round);
        done(&s);
        idle(&s);
    }
    cr_assert_eq(batcher_counts(s.batcher).admitted, 0);
    end(&s);
}

static struct script begin_holding(int64_t hold_ns)
{
    struct script script = {.now = 1000};
    script.batcher = batcher_create(&(struct batcher_config){
        .max_batch = 4, .buffers = 3, .lanes = 1, .max_images = 64, .hold_ns = hold_ns});
    return script;
}

Test(batcher, a_hold_ends_by_time)
{
    struct script s = begin_holding(500);
    idle(&s);
    cr_assert_eq(batcher_wake_at(s.batcher), INT64_MAX);
    ready(&s, "a");
    cr_assert_eq(batcher_wake_at(s.batcher), 1500);
    s.now = 1400;
    ready(&s, "b");
    cr_assert_eq(batcher_wake_at(s.batcher), 1500, "counted from the first ready image");
    s.now = 1499;
    cr_assert_eq(batcher_should_close(s.batcher, s.now), BATCH_OPEN);
    cr_assert_str_eq(take(&s), "");
    s.now = 1500;
    cr_assert_eq(batcher_should_close(s.batcher, s.now), BATCH_IDLE_DEVICE);
    cr_assert(batcher_can_take(s.batcher, s.now));
    cr_assert_str_eq(take(&s), "ab");
    cr_assert_eq(s.batch.reason, BATCH_IDLE_DEVICE);
    end(&s);
}

Test(batcher, a_hold_ends_when_the_batch_is_full)
{
    struct script s = begin_holding(500);
    idle(&s);
    ready(&s, "abc");
    cr_assert_str_eq(take(&s), "");
    ready(&s, "d");
    cr_assert_str_eq(take(&s), "abcd");
    cr_assert_eq(s.batch.reason, BATCH_FULL);
    end(&s);
}

Test(batcher, a_hold_ends_with_a_drain)
{
    struct script s = begin_holding(INT64_MAX);
    idle(&s);
    ready(&s, "a");
    cr_assert_eq(batcher_wake_at(s.batcher), INT64_MAX);
    batcher_drain(s.batcher, s.now);
    cr_assert_str_eq(take(&s), "a");
    cr_assert_eq(s.batch.reason, BATCH_DRAIN);
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
            batch.items[k] = item((char)('a' + k));
        }
        struct batch_move moves[8];
        int count = batch_compact(&batch, moves);
        char text[64] = "", items[16] = "";
        for (int k = 0; k < count; k++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%d>%d", moves[k].from,
                     moves[k].to);
        for (int k = 0; k < batch.count; k++) {
            items[k] = *(const char *)batch.items[k];
            cr_assert_eq(batch.slots[k], k, "%s", cases[i].name);
        }
        cr_assert_str_eq(text, cases[i].moves, "%s: %s", cases[i].name, text);
        cr_assert_str_eq(items, cases[i].items, "%s: %s", cases[i].name, items);
    }
}

/* Random events in any legal order: every image comes out exactly once, no reserve is ever without
 * a slot (asserted inside), and at the end nothing is left anywhere. */
static void walk(unsigned seed, int max_batch, int lanes, int64_t hold_ns)
{
    enum { IMAGES = 300, PREPARING = 64 };
    static char images[IMAGES];
    int seen[IMAGES] = {0};
    int busy[8], idle_count = 0, busy_count = 0, starting = lanes;
    void *claimed[PREPARING];
    struct batch_slot writing[256];
    char *writing_items[256];
    size_t claimed_count = 0, writing_count = 0;
    int admitted = 0, finished = 0;
    int64_t now = 0;
    struct batcher *batcher = batcher_create(&(struct batcher_config){.max_batch = max_batch,
                                                                      .buffers = lanes + 2,
                                                                      .lanes = lanes,
                                                                      .max_images = 24,
                                                                      .hold_ns = hold_ns});
    srand(seed);
    for (int step = 0; finished < IMAGES; step++) {
        cr_assert_lt(step, 200000, "stuck at %d of %d", finished, IMAGES);
        now += rand() % 3;
        batcher_grant(batcher);
        struct batcher_counts counts = batcher_counts(batcher);
        struct batch batch;
        switch (rand() % 8) {
        case 0:
            if (admitted < IMAGES && counts.admitted < 24)
                batcher_admit(batcher, &images[admitted++]);
            break;
        case 1:
            if (counts.granted > 0 && claimed_count < PREPARING)
                claimed[claimed_count++] = batcher_claim(batcher);
            break;
        case 2:
            if (claimed_count > 0) {
                writing_items[writing_count] = claimed[--claimed_count];
                writing[writing_count] =
                    batcher_reserve(batcher, writing_items[writing_count], now);
                writing_count++;
            }
            break;
        case 3:
            if (claimed_count > 0 && rand() % 4 == 0) {
                char *image = claimed[--claimed_count];
                seen[image - images]++;
                finished++;
                batcher_give_up(batcher);
                batcher_answered(batcher, 1);
            }
            break;
        case 4:
        case 5:
            if (writing_count > 0) {
                size_t which = (size_t)rand() % writing_count;
                if (rand() % 8 == 0) {
                    seen[writing_items[which] - images]++;
                    finished++;
                    batcher_abandon(batcher, writing[which], now);
                    batcher_answered(batcher, 1);
                } else {
                    batcher_commit(batcher, writing[which], now);
                }
                writing[which] = writing[--writing_count];
                writing_items[which] = writing_items[writing_count];
            }
            break;
        case 6:
            if (starting > 0) {
                starting--;
                idle_count++;
                batcher_lane_idle(batcher, now);
            }
            bool can = batcher_can_take(batcher, now);
            if (idle_count == 0)
                break;
            cr_assert_eq(batcher_take(batcher, now, &batch), can);
            if (!can)
                break;
            idle_count--;
            busy[busy_count++] = batch.buffer;
            for (int i = 0; i < batch.count; i++)
                seen[(char *)batch.items[i] - images]++;
            finished += batch.count;
            batcher_answered(batcher, (size_t)batch.count);
            break;
        case 7:
            if (busy_count > 0) {
                int which = rand() % busy_count;
                batcher_done(batcher, busy[which]);
                busy[which] = busy[--busy_count];
                starting++;
            }
            break;
        }
    }
    for (int i = 0; i < IMAGES; i++)
        cr_assert_eq(seen[i], 1, "image %d came out %d times", i, seen[i]);
    while (busy_count > 0)
        batcher_done(batcher, busy[--busy_count]);
    struct batcher_counts counts = batcher_counts(batcher);
    cr_assert_eq(counts.admitted + counts.queued + counts.granted + counts.preparing +
                     counts.slots + counts.running,
                 0);
    cr_assert_eq(counts.free_buffers, lanes + 2);
    batcher_free(batcher);
}

Test(batcher, random_walks_lose_nothing_and_never_stick)
{
    static const struct {
        int max_batch, lanes;
        int64_t hold_ns;
    } shapes[] = {{1, 1, 0}, {2, 1, 0}, {4, 1, 5}, {8, 1, 0}, {1, 3, 0}, {3, 2, 0}, {4, 4, 9}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (unsigned seed = 1; seed <= 30; seed++)
            walk(seed, shapes[i].max_batch, shapes[i].lanes, shapes[i].hold_ns);
}
