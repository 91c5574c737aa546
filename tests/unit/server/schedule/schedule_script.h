/* The deterministic harness of the scheduler: a script of events with a scripted clock and lanes
 * that only exist in it, run against the real batcher, queue and admission code.
 *
 * Images are single letters. A script is a list of commands, separated by ';':
 *
 *     @12.5                     the clock is at 12.5 ms
 *     + abc  c7 u1 d80 b500 l1  admits a, b, c: of client 7, priority 1, deadline at 80 ms, of 500
 *                               bytes each, large (all but the letters may be left out), past
 *                               admission
 *     ask abc c7 u1 d80 = ok    the same through admission, as one request: ok, or the word of the
 *                               status that refuses it; "503 in 3" also names Retry-After
 *     claim ab                  workers take images, in exactly this order; "claim -": no ticket
 *     slot ab / commit ab       a slot is reserved for each / its pixels are there
 *     ready ab                  claim, slot, commit
 *     drop a                    a claimed image does not decode
 *     abandon a                 its pixels will not come
 *     gone ab / gone a = no     the client hangs up: out of the queue / it was not in it any more
 *     idle 0                    lane 0 has nothing to do
 *     take 0 = abc full         it gets exactly these images, closed for this reason; = - : nothing
 *     ran 0 4 12.5              a pass of 4 images took lane 0 12.5 ms
 *     done 0                    its batch has run and is answered
 *     back 0 abc                it gives its batch back, of which abc are left
 *     away 0                    its device is quarantined
 *     in = 5                    images admitted and not answered
 *     tickets = 3               tickets granted now
 *
 * Every expectation is exact. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* L(b) of every lane of a scenario, milliseconds for 1, 2, 4 and 8 images. */
enum table {
    UNKNOWN, /* nothing measured */
    FLAT,    /* a GPU far from full: 10, 10.5, 11, 12 */
    LINEAR,  /* a CPU: 10, 20, 40, 80 */
    BENT,    /* 4 images are best: 10, 12, 16, 40 */
};

struct setup {
    enum table table;
    int max_batch, lanes;
    size_t max_images; /* 0: 64 */
    size_t max_bytes;  /* 0: no bound */
    double max_wait_ms;
    int workers; /* whose decode time counts in predictions; 0: none */
};

struct scenario {
    const char *name;
    struct setup setup;
    const char *script;
};

/* Runs them all; a failure names scenario, command and what was found. */
void run_scenarios(const struct scenario *scenarios, size_t count);
