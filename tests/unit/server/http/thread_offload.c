/* Offload threads: who waits for whom, and what is left at the end. A plain program, so that it
 * also runs under ThreadSanitizer. */
#include <semaphore.h>
#include <stdatomic.h>

#include "engine/base/size.h"
#include "server/http/transport/exchange.h"
#include "tests/unit/tap.h"

#define JOBS 1000

struct note {
    struct exchange exchange;
    sem_t *wait_for, *tell; /* NULL: nothing */
};

static _Atomic int done;

static void run(struct exchange *exchange)
{
    struct note *note = exchange->handle;
    if (note->tell)
        CHECK(!sem_post(note->tell));
    if (note->wait_for)
        CHECK(!sem_wait(note->wait_for));
    atomic_fetch_add(&done, 1);
}

static struct offload *create(void)
{
    struct offload *offload;
    struct error err;
    CHECK(offload_create(&offload, &err) == STATUS_OK);
    atomic_store(&done, 0);
    return offload;
}

static void post(struct offload *offload, struct note *note, bool is_long, sem_t *wait_for,
                 sem_t *tell)
{
    *note = (struct note){{.handle = note}, wait_for, tell};
    note->exchange.offload =
        (struct offload_job){.run = run, .exchange = &note->exchange, .is_long = is_long};
    offload_run(offload, &note->exchange.offload);
}

/* Long jobs that do not end, as many as you like: a short one is done all the same, and one long
 * job leaves room for another one. */
static void test_a_long_job_blocks_nobody(void)
{
    static struct note held[8], free_long, free_short[2];
    sem_t gate, told;
    CHECK(!sem_init(&gate, 0, 0) && !sem_init(&told, 0, 0));
    struct offload *offload = create();
    post(offload, &held[0], true, &gate, NULL);
    post(offload, &free_long, true, NULL, &told);
    CHECK(!sem_wait(&told));
    for (size_t i = 1; i < COUNT_OF(held); i++)
        post(offload, &held[i], true, &gate, NULL);
    for (size_t i = 0; i < COUNT_OF(free_short); i++) {
        post(offload, &free_short[i], false, NULL, &told);
        CHECK(!sem_wait(&told));
    }
    for (size_t i = 0; i < COUNT_OF(held); i++)
        CHECK(!sem_post(&gate));
    offload_free(offload);
    CHECK(atomic_load(&done) == COUNT_OF(held) + 1 + COUNT_OF(free_short));
    CHECK(!sem_destroy(&gate) && !sem_destroy(&told));
}

static void test_all_is_done_before_it_ends(void)
{
    static struct note notes[JOBS + 1];
    struct offload *offload = create();
    for (size_t i = 0; i < JOBS; i++)
        post(offload, &notes[i], i % 3 == 0, NULL, NULL);
    offload_stop(offload);
    CHECK(atomic_load(&done) == JOBS);
    post(offload, &notes[JOBS], false, NULL, NULL); /* here, as there is no thread any more */
    CHECK(atomic_load(&done) == JOBS + 1);
    offload_free(offload);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"a long job blocks nobody", test_a_long_job_blocks_nobody},
        {"all is done before it ends", test_all_is_done_before_it_ends},
    };
    return tap_run(tests, COUNT_OF(tests), NULL);
}
