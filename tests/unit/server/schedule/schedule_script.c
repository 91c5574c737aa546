/* Runs scripts of events against the batcher, the queue and admission, with a scripted clock. */
#include "tests/unit/server/schedule/schedule_script.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "server/schedule/policy/batcher.h"

#define MS 1e6

struct image {
    struct batch_item item;
    struct batch_slot slot;
    int64_t deadline; /* INT64_MAX: none */
    char letter;
};

struct run {
    const struct scenario *scenario;
    const char *command; /* for messages */
    struct batcher *batcher;
    struct admission admission;
    int64_t now;
    struct image images[128]; /* by letter */
    struct batch batches[8];  /* by lane */
};

#define CHECK(run, condition, ...)                                                                 \
    do {                                                                                           \
        char found_[640];                                                                          \
        snprintf(found_, sizeof found_, __VA_ARGS__);                                              \
        cr_assert(condition, "%s\n    at '%s': %s", (run)->scenario->name, (run)->command,         \
                  found_);                                                                         \
    } while (0)

static struct image *image_of(struct run *run, char letter)
{
    struct image *image = &run->images[(unsigned char)letter];
    image->letter = letter;
    return image;
}

/* "abc c7 u1 d80 b500": fills in the images' items; returns how many. */
static int read_images(struct run *run, const char *text, char *ret_letters)
{
    int64_t deadline = INT64_MAX;
    char letters[64], word[32];
    int used = 0, length, count;
    struct batch_item item = {0};
    CHECK(run, sscanf(text, "%63s%n", letters, &used) == 1, "no images");
    for (text += used; sscanf(text, "%31s%n", word, &length) == 1 && word[0] != '=';
         text += length) {
        double value = strtod(word + 1, NULL);
        switch (word[0]) {
        case 'c':
            item.client = (uint64_t)value;
            break;
        case 'u':
            item.priority = (int)value;
            break;
        case 'd':
            deadline = (int64_t)(value * MS);
            break;
        case 'b':
            item.bytes = (size_t)value;
            break;
        case 'l':
            item.is_large = value > 0;
            break;
        default:
            CHECK(run, false, "what is %s?", word);
        }
    }
    for (count = 0; letters[count]; count++) {
        struct image *image = image_of(run, letters[count]);
        image->item = item;
        image->deadline = deadline;
        image->item.owner = image;
    }
    memcpy(ret_letters, letters, sizeof letters);
    return count;
}

static void admit(struct run *run, const char *letters, int64_t predicted)
{
    for (; *letters; letters++)
        batcher_admit(run->batcher, &image_of(run, *letters)->item, predicted, run->now);
}

static void do_admit(struct run *run, const char *rest)
{
    char letters[64];
    read_images(run, rest, letters);
    admit(run, letters, 0);
}

static void do_ask(struct run *run, const char *rest)
{
    char letters[64], word[32] = "";
    int count = read_images(run, rest, letters), wanted = 0;
    const struct batch_item *item = &image_of(run, letters[0])->item;
    const int64_t deadline = image_of(run, letters[0])->deadline;
    struct model_load load;
    struct error err = {0};
    int64_t predicted = 0;
    batcher_load(run->batcher, item->client, item->priority, run->now, &load);
    struct admission_request request = {.images = (size_t)count,
                                        .bytes = item->bytes * (size_t)count,
                                        .time_left =
                                            deadline == INT64_MAX ? INT64_MAX : deadline - run->now,
                                        .model = "m"};
    enum status status = admission_check(&run->admission, &load, &request, &predicted, &err);
    CHECK(run, sscanf(strchr(rest, '='), "= %31s in %d", word, &wanted) >= 1, "no outcome");
    CHECK(run, !strcmp(word, status_word(status)), "%s (%s), predicted %.3f ms",
          status_word(status), err.message, (double)predicted / MS);
    CHECK(run, wanted == 0 || wanted == err.retry_after_s, "retry after %d s", err.retry_after_s);
    if (status == STATUS_OK)
        admit(run, letters, predicted);
}

static void do_claim(struct run *run, const char *rest)
{
    char letters[64];
    CHECK(run, sscanf(rest, "%63s", letters) == 1, "no images");
    batcher_grant(run->batcher);
    if (letters[0] == '-') {
        size_t granted = batcher_counts(run->batcher).granted;
        CHECK(run, granted == 0, "%zu tickets", granted);
        return;
    }
    for (const char *letter = letters; *letter; letter++) {
        batcher_grant(run->batcher);
        CHECK(run, batcher_counts(run->batcher).granted > 0, "no ticket for %c", *letter);
        const struct image *image = batcher_claim(run->batcher, true, run->now);
        char got = '-';
        if (image)
            got = image->letter;
        CHECK(run, got == *letter, "it is the turn of %c, not of %c", got, *letter);
    }
}

static void do_slot(struct run *run, const char *letters)
{
    for (; *letters; letters++)
        if (*letters != ' ')
            image_of(run, *letters)->slot =
                batcher_reserve(run->batcher, &image_of(run, *letters)->item);
}

static void do_commit(struct run *run, const char *letters)
{
    for (; *letters; letters++)
        if (*letters != ' ')
            batcher_commit(run->batcher, image_of(run, *letters)->slot, run->now);
}

static void do_ready(struct run *run, const char *rest)
{
    do_claim(run, rest);
    do_slot(run, rest);
    do_commit(run, rest);
}

static void do_drop(struct run *run, const char *letters)
{
    for (; *letters; letters++) {
        if (*letters == ' ')
            continue;
        batcher_drop(run->batcher);
        batcher_answered(run->batcher, 1);
    }
}

static void do_abandon(struct run *run, const char *letters)
{
    for (; *letters; letters++) {
        if (*letters == ' ')
            continue;
        batcher_abandon(run->batcher, image_of(run, *letters)->slot);
        batcher_answered(run->batcher, 1);
    }
}

static void do_gone(struct run *run, const char *letters)
{
    bool expected = !strstr(letters, "= no");
    for (; *letters && *letters != '='; letters++) {
        if (*letters == ' ')
            continue;
        bool removed = batcher_remove(run->batcher, &image_of(run, *letters)->item);
        CHECK(run, removed == expected, "%c was %sin the queue", *letters, removed ? "" : "not ");
        if (removed)
            batcher_answered(run->batcher, 1);
    }
}

static void do_idle(struct run *run, const char *rest)
{
    batcher_lane_idle(run->batcher, (int)strtol(rest, NULL, 10));
}

static void do_take(struct run *run, const char *rest)
{
    int lane = (int)strtol(rest, NULL, 10);
    char wanted[64], reason[32] = "", got[64] = "-";
    CHECK(run, sscanf(strchr(rest, '='), "= %63s %31s", wanted, reason) >= 1, "no outcome");
    struct batch *batch = &run->batches[lane];
    bool can = batcher_can_take(run->batcher);
    bool taken = batcher_take(run->batcher, lane, run->now, batch);
    for (int i = 0; taken && i < batch->count; i++) {
        got[i] = ((const struct image *)batch->items[i]->owner)->letter;
        got[i + 1] = '\0';
    }
    const char *why = taken ? batch_close_name(batch->reason) : "";
    CHECK(run, !strcmp(got, wanted) && !strcmp(why, reason), "%s %s", got, why);
    CHECK(run, taken <= can, "it was not announced by batcher_can_take");
}

static void do_ran(struct run *run, const char *rest)
{
    int lane, images;
    double ms;
    CHECK(run, sscanf(rest, "%d %d %lf", &lane, &images, &ms) == 3, "three numbers");
    latency_observe(batcher_latency(run->batcher, lane), images, (int64_t)(ms * MS));
}

static void do_done(struct run *run, const char *rest)
{
    const struct batch *batch = &run->batches[strtol(rest, NULL, 10)];
    batcher_release(run->batcher, batch, false);
    batcher_answered(run->batcher, (size_t)batch->count);
}

static void do_back(struct run *run, const char *rest)
{
    int lane = 0;
    char left[64] = "";
    CHECK(run, sscanf(rest, "%d %63s", &lane, left) >= 1, "no lane");
    struct batch *batch = &run->batches[lane];
    int kept = 0, taken = batch->count;
    for (int i = 0; i < taken; i++) {
        if (!strchr(left, ((const struct image *)batch->items[i]->owner)->letter))
            continue;
        batch->slots[kept] = batch->slots[i];
        batch->items[kept++] = batch->items[i];
    }
    batch->count = kept;
    batcher_answered(run->batcher, (size_t)(taken - kept));
    batcher_release(run->batcher, batch, true);
}

static void do_away(struct run *run, const char *rest)
{
    batcher_lane_works(run->batcher, (int)strtol(rest, NULL, 10), false);
}

static void do_in(struct run *run, const char *rest)
{
    size_t wanted = 0, admitted = batcher_counts(run->batcher).admitted;
    CHECK(run, sscanf(rest, "= %zu", &wanted) == 1 && admitted == wanted, "%zu", admitted);
}

static void do_tickets(struct run *run, const char *rest)
{
    size_t wanted = 0;
    batcher_grant(run->batcher);
    size_t granted = batcher_counts(run->batcher).granted;
    CHECK(run, sscanf(rest, "= %zu", &wanted) == 1 && granted == wanted, "%zu", granted);
}

static void do_clock(struct run *run, const char *rest)
{
    int64_t now = (int64_t)(strtod(rest, NULL) * MS);
    CHECK(run, now >= run->now, "the clock goes back");
    run->now = now;
}

static void do_command(struct run *run, char *text)
{
    static const struct {
        const char *word;
        void (*act)(struct run *run, const char *rest);
    } commands[] = {
        {"@", do_clock},      {"+ ", do_admit},   {"ask ", do_ask},
        {"claim ", do_claim}, {"slot ", do_slot}, {"commit ", do_commit},
        {"ready ", do_ready}, {"drop ", do_drop}, {"abandon ", do_abandon},
        {"gone ", do_gone},   {"idle ", do_idle}, {"take ", do_take},
        {"ran ", do_ran},     {"done ", do_done}, {"back ", do_back},
        {"away ", do_away},   {"in ", do_in},     {"tickets ", do_tickets},
    };
    while (*text == ' ' || *text == '\n')
        text++;
    run->command = text;
    if (!*text)
        return;
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        size_t length = strlen(commands[i].word);
        if (strncmp(text, commands[i].word, length) != 0)
            continue;
        commands[i].act(run, text + length);
        return;
    }
    CHECK(run, false, "unknown command");
}

static void set_table(struct run *run)
{
    static const double tables[][4] = {
        [FLAT] = {10, 10.5, 11, 12}, [LINEAR] = {10, 20, 40, 80}, [BENT] = {10, 12, 16, 40}};
    static const int sizes[] = {1, 2, 4, 8};
    const struct setup *setup = &run->scenario->setup;
    struct session_batch batches[4];
    size_t count = 0;
    for (; setup->table != UNKNOWN && count < 4 && sizes[count] <= setup->max_batch; count++)
        batches[count] = (struct session_batch){sizes[count], tables[setup->table][count], 0};
    for (int lane = 0; lane < setup->lanes && setup->table != UNKNOWN; lane++)
        latency_init(batcher_latency(run->batcher, lane), batches, count);
}

static void run_scenario(const struct scenario *scenario)
{
    const struct setup *setup = &scenario->setup;
    struct run *run = calloc(1, sizeof *run);
    char *script = strdup(scenario->script), *rest = NULL;
    cr_assert(run && script);
    run->scenario = scenario;
    run->command = "setup";
    size_t max_images = setup->max_images ? setup->max_images : 64;
    run->admission = (struct admission){.max_images = max_images,
                                        .max_bytes = setup->max_bytes,
                                        .max_wait_ns = (int64_t)(setup->max_wait_ms * MS)};
    run->batcher = batcher_create(&(struct batcher_config){.max_batch = setup->max_batch,
                                                           .capacity = setup->max_batch,
                                                           .buffers = setup->lanes + 2,
                                                           .depth = 1,
                                                           .lanes = setup->lanes,
                                                           .workers = setup->workers,
                                                           .larges = 2,
                                                           .max_images = max_images});
    CHECK(run, run->batcher != NULL, "no batcher");
    set_table(run);
    for (char *command = strtok_r(script, ";", &rest); command;
         command = strtok_r(NULL, ";", &rest))
        do_command(run, command);
    batcher_free(run->batcher);
    free(script);
    free(run);
}

void run_scenarios(const struct scenario *scenarios, size_t count)
{
    for (size_t i = 0; i < count; i++)
        run_scenario(&scenarios[i]);
}
