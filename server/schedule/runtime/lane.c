/* Creates, starts and frees a lane; has the loop of its thread. */
#include "server/schedule/runtime/lane.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"

static enum status allocate(struct lane *lane, struct error *err)
{
    const size_t padded = (size_t)session_batch_for(lane->session, 1);
    const size_t inputs = lane->info.input_count, outputs = lane->info.output_count;
    TRY(batch_layout_init(lane->session, padded, &lane->retry_layout, err));
    TRY(session_buffer_create(lane->info.device, lane->retry_layout.bytes, &lane->retry_rows, err));
    lane->outputs = alloc_array(outputs, sizeof *lane->outputs);
    lane->wanted = alloc_array(outputs, sizeof *lane->wanted);
    lane->inputs = alloc_array(inputs * (BATCHER_MAX_DEPTH + 1), sizeof *lane->inputs);
    lane->retry_marks = alloc_array(padded, sizeof *lane->retry_marks);
    for (size_t i = 0; lane->inputs && i < BATCHER_MAX_DEPTH; i++)
        lane->inflight[i].inputs = lane->inputs + (i + 1) * inputs;
    return check_memory(lane->outputs && lane->wanted && lane->inputs && lane->retry_marks,
                        "for a device lane", err);
}

static size_t needed_bytes(const struct lane *lane, const struct session_options *options)
{
    size_t rows = (size_t)session_batch_for(lane->session, session_max_batch(&lane->info)),
           row_bytes = 0;
    const size_t batches =
        options->input_batches ? options->input_batches + lane->info.depth - 1 : 0;
    rows = rows * batches + options->input_images;
    for (size_t k = 0; k < lane->info.input_count; k++)
        row_bytes += lane->retry_layout.row_bytes[k];
    return lane->info.parameter_bytes + lane->info.activation_bytes + rows * row_bytes;
}

enum status lane_create(const struct model *model, struct session *session,
                        const struct session_options *options, struct device_budgets *budget,
                        struct device_queue *queue, struct lane **ret, struct error *err)
{
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane) {
        session_free(session);
        return error_set(err, STATUS_NO_MEMORY, "no memory for a device lane");
    }
    lane->model = model;
    lane->budget = budget;
    lane->arena = &queue->arena;
    device_turn_init(&lane->turn, queue);
    device_turn_init(&lane->borrowed, queue);
    pthread_mutex_init(&lane->lock, NULL);
    pthread_mutex_init(&lane->session_lock, NULL);
    sem_init(&lane->warm, 0, 0);
    lane->session = session;
    lane->info = *session_info(session);
    *ret = lane;
    TRY(allocate(lane, err));
    lane->cap = batch_cap_begin(session_max_batch(&lane->info));
    lane->needs = needed_bytes(lane, options);
    lane->booked = lane->needs - session_share_arena(session, lane->arena);
    budget_book(budget, lane->info.device, 0, lane->booked);
    budget_book_arena(budget, lane->info.device, lane->arena);
    return STATUS_OK;
}

void lane_borrow(void *argument)
{
    struct lane *lane = argument;
    device_turn_begin(&lane->borrowed);
    pthread_mutex_lock(&lane->session_lock);
    lane->borrowed_at = clock_now();
}

void lane_return(void *argument)
{
    struct lane *lane = argument;
    const int64_t used = clock_now() - lane->borrowed_at;
    pthread_mutex_unlock(&lane->session_lock);
    device_turn_end(&lane->borrowed, used, false);
}

/* Starts the team of the lane's thread: each thread that enters a parallel loop has its own team
 * (engine/base/forkjoin.h). A session with several batch sizes has released the pages of its
 * activations, so a pass of one image allocates them in advance. If this pass fails, the first
 * request gets the error. */
static bool warm_up(struct lane *lane)
{
    for (size_t k = 0; k < lane->info.input_count; k++)
        lane->inputs[k] = batch_layout_row(&lane->retry_layout, lane->retry_rows, k, 0);
    struct error ignored;
    lane->entered = session_enter(lane->session, &lane->refusal);
    const bool entered = lane->entered == STATUS_OK;
    if (entered && lane->info.batch_count > 1) {
        device_turn_begin(&lane->turn);
        (void)!session_run(lane->session, 1, lane->inputs, lane->outputs, &ignored);
        device_turn_end(&lane->turn, 0, false);
    }
    session_set_run_ended(lane->session, scheduler_wake_lanes, lane->scheduler);
    /* Not before the first pass, which belongs to the load and obeys the load's cancel flag. */
    session_set_stop(lane->session, lane_is_unwanted, lane);
    sem_post(&lane->warm);
    return entered;
}

/* The pages of a session's activations return to the system after this time without a batch. A
 * later pass takes a millisecond or two longer, because it allocates them again. */
#define IDLE_NS INT64_C(10000000000)

static void *lane_main(void *argument)
{
    struct lane *lane = argument;
    struct batch batch;
    bool goes_on = warm_up(lane);
    int64_t idle_at = clock_now() + IDLE_NS;
    enum lane_wake wake;
    while (goes_on && (wake = scheduler_next_batch(lane->scheduler, lane->index, &lane->turn,
                                                   idle_at, &batch)) != LANE_END) {
        pthread_mutex_lock(&lane->session_lock);
        if (wake == LANE_BATCH)
            lane_serve(lane, &batch);
        else
            session_release_pages(lane->session);
        pthread_mutex_unlock(&lane->session_lock);
        idle_at = wake == LANE_BATCH ? clock_now() + IDLE_NS : INT64_MAX;
        if (lane->quarantined_since)
            goes_on = lane_stay_quarantined(lane);
    }
    return NULL;
}

enum status lane_start(struct lane *lane, struct scheduler *scheduler, int index, struct error *err)
{
    char name[64], device[DEVICE_TEXT];
    snprintf(name, sizeof name, "%s-%s", device_text(lane->info.device, device), lane->model->name);
    lane->scheduler = scheduler;
    lane->deployment = scheduler->deployment;
    lane->index = index;
    lane_meters_init(&lane->meters, &scheduler->deployment->meters, lane->info.device);
    metric_set(lane->meters.batch_cap, lane->cap.cap);
    lane->started = thread_start(&lane->thread, name, lane_main, lane);
    if (!lane->started)
        return error_set(err, STATUS_NO_MEMORY,
                         "the thread of device %s could not be started; " THREAD_LIMIT_HINT,
                         device);
    while (sem_wait(&lane->warm) != 0) {
        /* interrupted by a signal: continue to wait */
    }
    if (lane->entered != STATUS_OK && err)
        *err = lane->refusal;
    return lane->entered;
}

void lane_free(struct lane *lane)
{
    if (!lane)
        return;
    if (lane->started)
        pthread_join(lane->thread, NULL);
    device_turn_done(&lane->turn);
    device_turn_done(&lane->borrowed);
    pthread_mutex_destroy(&lane->lock);
    pthread_mutex_destroy(&lane->session_lock);
    sem_destroy(&lane->warm);
    for (size_t i = 0; i < TASK_MAX_OUTPUTS; i++)
        task_buffer_done(&lane->buffers[i]);
    batch_layout_done(&lane->retry_layout);
    session_buffer_free(lane->info.device, lane->retry_rows);
    FREE_ALL(lane->retry_marks, lane->inputs, lane->wanted, lane->outputs);
    session_free(lane->session);
    budget_book(lane->budget, lane->info.device, lane->booked, 0);
    budget_book_arena(lane->budget, lane->info.device, lane->arena);
    free(lane);
}
