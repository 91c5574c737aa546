/* Memory of devices that models share. */
#include <criterion/criterion.h>
#include <stdatomic.h>

#include "engine/backend/shared_arena.h"
#include "server/schedule/runtime/budget.h"

#define GPU ((struct device_id){DEVICE_CUDA, 1})

Test(budget, what_is_left_is_shared)
{
    struct device_budgets budget;
    budget_init(&budget, (const struct device_id[]){DEVICE_HOST, GPU}, (const size_t[]){1000, 0}, 2,
                0);
    cr_assert_eq(budget_share(&budget, DEVICE_HOST, 1), 1000);
    cr_assert_eq(budget_share(&budget, DEVICE_HOST, 2), 500);
    budget_book(&budget, DEVICE_HOST, 0, 450);
    cr_assert_eq(budget_share(&budget, DEVICE_HOST, 1), 550);
    budget_book(&budget, DEVICE_HOST, 0, 550);
    cr_assert_eq(budget_share(&budget, DEVICE_HOST, 1), 1, "a limit stays a limit");
    budget_book(&budget, DEVICE_HOST, 0, 5); /* planned a little more than there was */
    cr_assert_eq(budget_share(&budget, DEVICE_HOST, 3), 1);
    size_t limit;
    cr_assert_eq(budget_used(&budget, DEVICE_HOST, &limit), 1005);
    cr_assert_eq(limit, 1000);
    budget_book(&budget, DEVICE_HOST, 455, 0);
    cr_assert_eq(budget_share(&budget, DEVICE_HOST, 1), 450);
    budget_done(&budget);
}

Test(budget, pictures_take_what_models_leave)
{
    struct device_budgets budget;
    budget_init(&budget, NULL, NULL, 0, 1000);
    struct error err;
    budget_book(&budget, DEVICE_HOST, 0, 400);
    budget_book(&budget, GPU, 0, 5000);
    cr_assert_eq(budget_take_picture(&budget, 601, &err), STATUS_TOO_LARGE);
    cr_assert_eq(budget_take_picture(&budget, 350, &err), STATUS_OK);
    cr_assert_eq(budget_take_picture(&budget, 251, &err), STATUS_TIMEOUT, "the other has it");
    cr_assert_eq(budget_take_picture(&budget, 250, &err), STATUS_OK);
    budget_give_picture(&budget, 350);
    cr_assert_eq(budget_take_picture(&budget, 251, &err), STATUS_OK);
    budget_give_picture(&budget, 250);
    budget_give_picture(&budget, 251);
    budget_book(&budget, DEVICE_HOST, 400, 0);
    cr_assert_eq(budget_take_picture(&budget, 1000, &err), STATUS_OK);
    budget_done(&budget);
}

Test(budget, tensors_of_runs_share_with_pictures)
{
    struct device_budgets budget;
    budget_init(&budget, NULL, NULL, 0, 3200);
    struct memory_budget *run = &budget.run;
    struct error err;
    budget_book(&budget, DEVICE_HOST, 0, 2200);
    cr_assert_eq(run->limit, 1000);
    cr_assert_eq(memory_charge(run, 600, &err), STATUS_OK);
    cr_assert_eq(budget_take_picture(&budget, 401, &err), STATUS_TIMEOUT, "a tensor has it");
    cr_assert_eq(budget_take_picture(&budget, 400, &err), STATUS_OK);
    memory_uncharge(run, 600);
    budget_give_picture(&budget, 400);
    cr_assert_eq(run->used, 0);
    budget_book(&budget, DEVICE_HOST, 0, 5000);
    cr_assert_eq(run->limit, 100, "models leave nothing: a part stays");
    budget_done(&budget);
}

Test(budget, without_limit_only_counts)
{
    struct device_budgets budget;
    budget_init(&budget, NULL, NULL, 0, 0);
    cr_assert_eq(budget_share(&budget, GPU, 1), 0);
    budget_book(&budget, GPU, 0, 77);
    cr_assert_eq(budget_share(&budget, GPU, 1), 0);
    cr_assert_eq(budget_used(&budget, GPU, NULL), 77);
    cr_assert_eq(budget_used(&budget, DEVICE_HOST, NULL), 0);
    budget_done(&budget);
}

Test(budget, an_arena_is_booked_once)
{
    struct device_budgets budget;
    budget_init(&budget, (const struct device_id[]){DEVICE_HOST}, (const size_t[]){1000}, 1, 0);
    struct shared_arena arena;
    shared_arena_init(&arena);
    arena.bytes = 300;
    budget_book_arena(&budget, DEVICE_HOST, &arena);
    budget_book_arena(&budget, DEVICE_HOST, &arena);
    cr_assert_eq(budget_used(&budget, DEVICE_HOST, NULL), 300);
    arena.bytes = 500;
    budget_book_arena(&budget, DEVICE_HOST, &arena);
    cr_assert_eq(budget_share(&budget, DEVICE_HOST, 1), 500);
    arena.bytes = 0;
    budget_book_arena(&budget, DEVICE_HOST, &arena);
    cr_assert_eq(budget_used(&budget, DEVICE_HOST, NULL), 0);
    shared_arena_done(&arena);
    budget_done(&budget);
}

Test(budget, limits_come_from_the_operator_or_the_machine)
{
    const size_t wanted[] = {4096, 0}, expected[] = {4096, 496};
    for (size_t i = 0; i < 2; i++) {
        struct device_budgets budget;
        budget_init(&budget, (const struct device_id[]){DEVICE_HOST}, &wanted[i], 1, 512);
        size_t limit;
        budget_used(&budget, DEVICE_HOST, &limit);
        cr_assert_eq(limit, expected[i], "a part is for the tensors of runs");
        budget_done(&budget);
    }
}
