/* The accounts of devices, guarded by one lock. */
#include "server/schedule/runtime/budget.h"

#include <assert.h>

#include "engine/backend/shared_arena.h"
#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"

#define LOOK_AGAIN_NS INT64_C(50000000)

/* Models cannot use 1 / RUN_PART of the host memory, so that small tensors of runs have room when
 * models fill the rest. */
#define RUN_PART 32

/* The device's account, created without limit if needed; NULL when all accounts are in use. */
static struct account *account_locked(struct device_budgets *budget, struct device_id device)
{
    for (size_t i = 0; i < budget->account_count; i++)
        if (device_equal(budget->accounts[i].device, device))
            return &budget->accounts[i];
    if (budget->account_count == COUNT_OF(budget->accounts))
        return NULL;
    struct account *account = &budget->accounts[budget->account_count++];
    *account = (struct account){.device = device};
    return account;
}

static void set_run_limit_locked(struct device_budgets *budget)
{
    const struct account *cpu = account_locked(budget, (struct device_id){.kind = DEVICE_CPU});
    const size_t used = cpu ? cpu->used : 0, least = budget->host / RUN_PART;
    const size_t rest = used < budget->host ? budget->host - used : 0;
    /* A limit of 0 would mean no limit. */
    budget->run.limit = budget->host ? (rest > least ? rest : least) + (rest + least == 0) : 0;
}

/* The limit of a device for which the operator has set none; 0: no limit. */
static size_t default_limit(struct device_id id, size_t host)
{
    struct device_info device;
    if (id.kind == DEVICE_CPU && host > 0)
        return host - host / RUN_PART;
    return device_find(id, &device) ? (size_t)(device.total_bytes / 10 * 9) : 0;
}

void budget_init(struct device_budgets *budget, const struct device_id *devices,
                 const size_t *limits, size_t count, size_t host)
{
    *budget = (struct device_budgets){.host = host};
    pthread_mutex_init(&budget->lock, NULL);
    condition_init(&budget->picture_done);
    for (size_t i = 0; i < count; i++) {
        struct account *account = account_locked(budget, devices[i]);
        if (account)
            account->limit = limits[i] ? limits[i] : default_limit(devices[i], host);
    }
    set_run_limit_locked(budget);
}

void budget_done(struct device_budgets *budget)
{
    pthread_cond_destroy(&budget->picture_done);
    pthread_mutex_destroy(&budget->lock);
}

size_t budget_share(struct device_budgets *budget, struct device_id device, int sharers)
{
    size_t limit, used = budget_used(budget, device, &limit);
    if (limit == 0)
        return 0;
    size_t share = used < limit ? (limit - used) / (size_t)sharers : 0;
    return share > 0 ? share : 1;
}

static void book_locked(struct device_budgets *budget, struct device_id device, size_t before,
                        size_t bytes)
{
    struct account *account = account_locked(budget, device);
    assert(!account || account->used >= before);
    if (account)
        account->used += bytes - before;
    set_run_limit_locked(budget);
    pthread_cond_broadcast(&budget->picture_done);
}

void budget_book(struct device_budgets *budget, struct device_id device, size_t before,
                 size_t bytes)
{
    LOCK(&budget->lock);
    book_locked(budget, device, before, bytes);
}

void budget_book_arena(struct device_budgets *budget, struct device_id device,
                       struct shared_arena *arena)
{
    LOCK(&budget->lock);
    book_locked(budget, device, arena->booked, arena->bytes);
    arena->booked = arena->bytes;
}

enum status budget_take_picture(struct device_budgets *budget, size_t bytes, struct error *err)
{
    LOCK(&budget->lock);
    const size_t room = budget->run.limit;
    if (room && bytes > room)
        return error_set(
            err, STATUS_TOO_LARGE,
            "decoding this picture takes %.1f MiB, but the models leave %.1f MiB of the memory "
            "for pictures; send a smaller picture, or give the process more memory",
            (double)bytes / (1 << 20), (double)room / (1 << 20));
    if (memory_charge(&budget->run, bytes, NULL) == STATUS_OK)
        return STATUS_OK;
    /* Freeing a tensor wakes no thread, so the wait ends after a while. */
    condition_wait(&budget->picture_done, &budget->lock, clock_now() + LOOK_AGAIN_NS);
    return STATUS_TIMEOUT;
}

void budget_give_picture(struct device_budgets *budget, size_t bytes)
{
    memory_uncharge(&budget->run, bytes);
    pthread_cond_broadcast(&budget->picture_done);
}

size_t budget_used(struct device_budgets *budget, struct device_id device, size_t *ret_limit)
{
    LOCK(&budget->lock);
    const struct account *account = account_locked(budget, device);
    size_t used = account ? account->used : 0;
    if (ret_limit)
        *ret_limit = account ? account->limit : 0;
    return used;
}
