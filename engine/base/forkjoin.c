/* Runs parallel regions on teams of threads, which spin for a while before they sleep.
 *
 * There are no locks. Every shared word that threads wait for is a futex: `go` starts a region in a
 * member, and `left` counts members that are still at work. A thread marks the word before it
 * sleeps, so that no system call is made for a spinning thread.
 *
 * How long to spin: waits between the steps of a pass are short, and a successful spin saves a
 * wake-up. If the team has its cores to itself, nearly all spins succeed. Otherwise the awaited
 * thread may need the spinning thread's core, and spins fail repeatedly. So every thread keeps a
 * score of its recent spins. While that is below one half, it sleeps at once, except for a rare
 * trial. */
#include "engine/base/forkjoin.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/cpu.h"
#include "engine/base/thread.h"

#define CACHE_LINES 128  /* cache lines are fetched in pairs */
#define MOST        1024 /* maximum number of members of a team */

#define SPIN_NS    100000
#define PAUSES     8   /* between reads of the clock */
#define SCORE_FULL 256 /* score if all recent spins succeeded */
#define SCORE_RATE 16  /* a failed spin has the weight 1/16 in the score, a successful one 2/16 */
#define TRY_EVERY  16  /* waits between trial spins while spins fail */

/* WORK: the member has not started its region, which can be taken back; BUSY: it has started. */
enum { GO_IDLE, GO_WORK, GO_BUSY, GO_ASLEEP, GO_END };

#define LEFT_ASLEEP 0x80000000u /* bit of `left`: member 0 sleeps until no member is at work */

struct patience {
    int score;
    unsigned waits;
};

struct member {
    alignas(CACHE_LINES) _Atomic uint32_t go;
    int number;
    struct team *team;
    struct patience patience;
    pthread_t handle;
};

struct team {
    alignas(CACHE_LINES) _Atomic uint32_t left; /* members at work, except member 0 */
    void (*body)(void *context);
    void *context;
    int active; /* number of members of the current region */
    struct patience patience;
    struct member *members[MOST - 1]; /* without member 0; `count` of them exist */
    int count;
};

static _Thread_local struct team *own;    /* the team with this thread as its first member */
static _Thread_local struct team *inside; /* the team whose region this thread is in; NULL: none */
static _Thread_local int own_number;

static pthread_key_t team_key; /* frees a thread's team when the thread ends */
static bool has_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void pause_briefly(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static bool is_worth_a_spin(struct patience *patience)
{
    return patience->score >= SCORE_FULL / 2 || ++patience->waits % TRY_EVERY == 0;
}

/* Spins for SPIN_NS while *word is `value`. Returns true when it has changed. */
static bool spin(struct patience *patience, _Atomic uint32_t *word, uint32_t value)
{
    const int64_t end = clock_now() + SPIN_NS;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) {
                patience->score += (SCORE_FULL - patience->score) * 2 / SCORE_RATE;
                return true;
            }
            pause_briefly();
        }
    } while (clock_now() < end);
    patience->score -= patience->score / SCORE_RATE;
    return false;
}

/* Waits; returns GO_WORK or GO_END. */
static uint32_t wait_for_go(struct member *member)
{
    uint32_t what;
    while ((what = atomic_load(&member->go)) == GO_IDLE) {
        if (is_worth_a_spin(&member->patience) && spin(&member->patience, &member->go, GO_IDLE))
            continue;
        uint32_t idle = GO_IDLE;
        if (atomic_compare_exchange_strong(&member->go, &idle, GO_ASLEEP))
            while (atomic_load(&member->go) == GO_ASLEEP)
                futex_wait(&member->go, GO_ASLEEP);
    }
    return what;
}

static void set_going(struct member *member, uint32_t what)
{
    if (atomic_exchange(&member->go, what) == GO_ASLEEP)
        futex_wake(&member->go, 1);
}

static void *member_main(void *argument)
{
    struct member *member = argument;
    struct team *team = member->team;
    own_number = member->number;
    (void)cpu_flush_subnormals();
    while (wait_for_go(member) != GO_END) {
        uint32_t work = GO_WORK;
        if (!atomic_compare_exchange_strong(&member->go, &work, GO_BUSY))
            continue; /* the region is taken back */
        inside = team;
        team->body(team->context);
        inside = NULL;
        /* Set `go` before `left`, because the next region may start as soon as `left` changes. */
        atomic_store(&member->go, GO_IDLE);
        if (atomic_fetch_sub(&team->left, 1) == (LEFT_ASLEEP | 1))
            futex_wake(&team->left, 1);
    }
    return NULL;
}

static void end_team(void *argument)
{
    struct team *team = argument;
    for (int i = 0; i < team->count; i++) {
        set_going(team->members[i], GO_END);
        pthread_join(team->members[i]->handle, NULL);
        free(team->members[i]);
    }
    free(team);
}

static void make_key(void)
{
    has_key = pthread_key_create(&team_key, end_team) == 0;
}

static struct team *make_team(void)
{
    pthread_once(&once, make_key);
    struct team *team = has_key ? aligned_alloc(CACHE_LINES, sizeof *team) : NULL;
    if (!team)
        return NULL;
    *team = (struct team){.patience.score = SCORE_FULL};
    if (pthread_setspecific(team_key, team) == 0)
        return team;
    free(team);
    return NULL;
}

static bool add_member(struct team *team)
{
    struct member *member = aligned_alloc(CACHE_LINES, sizeof *member);
    if (!member)
        return false;
    *member =
        (struct member){.number = team->count + 1, .team = team, .patience.score = SCORE_FULL};
    if (!thread_start(&member->handle, NULL, member_main, member)) {
        free(member);
        return false;
    }
    team->members[team->count++] = member;
    return true;
}

/* Extends this thread's team to `others` members besides member 0, or as many as possible. Returns
 * how many of them a region can use: 0 inside of a region. */
static int gather(int others)
{
    if (others <= 0 || inside)
        return 0;
    if (!own)
        own = make_team();
    if (!own)
        return 0;
    if (others > MOST - 1)
        others = MOST - 1;
    while (own->count < others && add_member(own))
        ;
    return own->count < others ? own->count : others;
}

static void wait_for_all(struct team *team)
{
    uint32_t left = atomic_load_explicit(&team->left, memory_order_acquire);
    while (left != 0) {
        if (is_worth_a_spin(&team->patience) && spin(&team->patience, &team->left, left)) {
            left = atomic_load_explicit(&team->left, memory_order_acquire);
            continue;
        }
        left = atomic_fetch_or(&team->left, LEFT_ASLEEP) | LEFT_ASLEEP;
        while (left != LEFT_ASLEEP) {
            futex_wait(&team->left, left);
            left = atomic_load(&team->left);
        }
        return;
    }
}

/* Takes the region back from members that have not started it: no work is left for them. */
static void take_back(struct team *team, int others)
{
    uint32_t never_began = 0;
    for (int i = 0; i < others; i++) {
        uint32_t work = GO_WORK;
        never_began += atomic_compare_exchange_strong(&team->members[i]->go, &work, GO_IDLE);
    }
    if (never_began > 0)
        atomic_fetch_sub(&team->left, never_began);
}

static void run(int threads, bool shares, void (*body)(void *context), void *context)
{
    int others = gather(threads - 1);
    if (others == 0) {
        static struct team alone = {.active = 1}; /* no thread writes to it */
        struct team *before = inside;
        int number = own_number;
        inside = &alone;
        own_number = 0;
        body(context);
        inside = before;
        own_number = number;
        return;
    }
    struct team *team = own;
    team->body = body;
    team->context = context;
    team->active = others + 1;
    atomic_store(&team->left, (uint32_t)others);
    for (int i = 0; i < others; i++)
        set_going(team->members[i], GO_WORK);
    inside = team;
    body(context);
    inside = NULL;
    if (shares)
        take_back(team, others);
    wait_for_all(team);
}

void forkjoin_run(int threads, void (*body)(void *context), void *context)
{
    run(threads, false, body, context);
}

void forkjoin_share(int threads, void (*body)(void *context), void *context)
{
    run(threads, true, body, context);
}

int forkjoin_prepare(int threads)
{
    return gather(threads - 1) + 1;
}

int forkjoin_cpu_times(int64_t *times, int most)
{
    int count = 0;
    if (most > 0)
        times[count++] = clock_thread();
    for (int i = 0; own && i < own->count && count < most; i++)
        times[count++] = thread_cpu_time(own->members[i]->handle);
    return count;
}

int forkjoin_member(void)
{
    return inside ? own_number : 0;
}

int forkjoin_members(void)
{
    return inside ? inside->active : 1;
}
