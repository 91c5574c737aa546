/* Programs whose first steps run as pieces.
 *
 * Early layers of a batch leave the caches, late ones read all their weights for every piece. So
 * the program of a batch may leave its first steps, its front, to that of a smaller one, which runs
 * them once for each piece:
 *
 *     piece 0   step 0 … step k-1 ──▶ ┌ rows of piece 0 ┐
 *     piece 1   step 0 … step k-1 ──▶ ├ rows of piece 1 ┤ ──▶ step k … of the whole batch
 *     piece 2   step 0 … step k-1 ──▶ └ rows of piece 2 ┘
 *
 * Whatever is made before step k and read behind it is carried: the pieces' steps write it straight
 * into the whole program's values, as both address their operands through program->data. The
 * pieces' other values lie at the beginning of the arena, all values of the whole program behind
 * them. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/cpu.h"

struct carried {
    uint32_t value;
    size_t bytes;  /* from one piece to the next; 0: the same for all */
    bool is_first; /* of the values of its block */
};

struct front {
    struct program *program; /* of a piece */
    size_t node;             /* the first one that the whole program runs */
    size_t steps;            /* of a piece */
    size_t skipped;          /* steps of the whole program that are not run */
    int images, pieces;      /* of a piece; in the whole batch */
    struct carried *carried;
    size_t carried_count;
    size_t *input_bytes; /* by program->input_values: from one piece to the next */
};

void front_free(struct front *front)
{
    if (!front)
        return;
    free(front->carried);
    free(front->input_bytes);
    free(front);
}

struct program *front_program(const struct front *front)
{
    return front->program;
}

size_t front_steps(const struct front *front)
{
    return front->steps;
}

size_t front_skipped(const struct front *front)
{
    return front->skipped;
}

int front_pieces(const struct front *front)
{
    return front->pieces;
}

size_t front_base(const struct program *program)
{
    return program->front ? program_own_bytes(program->front->program) : 0;
}

static size_t steps_before(const struct program *program, size_t node)
{
    size_t count = 0;
    while (count < program->step_count && program->steps[count]->node < node)
        count++;
    return count;
}

static void list_carried(struct front *front, const struct plan *whole, const struct plan *piece)
{
    for (size_t b = 0; b < whole->block_count; b++) {
        bool is_first = true;
        for (size_t v = 0;
             v < whole->value_count && plan_is_carried(&whole->blocks[b], front->node); v++) {
            const struct plan_value *w = &whole->values[v], *p = &piece->values[v];
            if (w->block != b || w->made >= front->node)
                continue;
            front->carried[front->carried_count++] =
                (struct carried){(uint32_t)v, w->bytes == p->bytes ? 0 : p->bytes, is_first};
            is_first = false;
        }
    }
}

static enum status make_front(const struct program *program, struct program *piece, size_t node,
                              const struct program_front *how, struct front **ret,
                              struct error *err)
{
    struct front *front = calloc(1, sizeof *front);
    if (!front)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while planning memory");
    *front = (struct front){.program = piece,
                            .node = node,
                            .steps = steps_before(piece, node),
                            .skipped = steps_before(program, node),
                            .images = how->images,
                            .pieces = how->pieces};
    front->carried = alloc_array(program->value_count, sizeof *front->carried);
    front->input_bytes = alloc_array(piece->input_value_count, sizeof *front->input_bytes);
    if (!front->carried || !front->input_bytes) {
        front_free(front);
        return error_set(err, STATUS_NO_MEMORY, "out of memory while planning memory");
    }
    list_carried(front, &program->plan, &piece->plan);
    for (size_t i = 0; i < piece->input_value_count; i++) {
        const uint32_t v = piece->input_values[i];
        const size_t bytes = piece->plan.values[v].bytes;
        front->input_bytes[i] = program->plan.values[v].bytes == bytes ? 0 : bytes;
    }
    *ret = front;
    return STATUS_OK;
}

static void count_scratch(struct program *program, size_t first)
{
    program->scratch_bytes = 0;
    for (size_t i = first; i < program->step_count; i++)
        if (program->steps[i]->scratch > program->scratch_bytes)
            program->scratch_bytes = program->steps[i]->scratch;
}

static bool is_front_of_another(const struct program *program)
{
    for (const struct program *p = program->backend->programs; p; p = p->next)
        if (p->front && p->front->program == program)
            return true;
    return false;
}

enum status cpu_set_front(struct program *program, struct program *piece,
                          const struct program_front *how, bool *ret_taken, struct error *err)
{
    *ret_taken = true;
    if (!piece) {
        front_free(program->front);
        program->front = NULL;
        count_scratch(program, 0);
        return plan_place_from(&program->plan, 0, err);
    }
    *ret_taken = false;
    if (program->front || piece->front || is_front_of_another(program) || how->step < 1 ||
        how->step >= program->step_count || how->images < 1 || how->pieces < 2)
        return STATUS_OK;
    const size_t node = program->steps[how->step]->node;
    if (node > how->most_nodes ||
        !plan_takes_pieces(&program->plan, &piece->plan, node, how->images, how->pieces))
        return STATUS_OK;
    struct front *front = NULL;
    TRY(make_front(program, piece, node, how, &front, err));
    const enum status status = plan_place_from(&program->plan, node, err);
    if (status != STATUS_OK) {
        front_free(front);
        return status;
    }
    program->front = front;
    count_scratch(program, front->skipped);
    *ret_taken = true;
    return STATUS_OK;
}

void cpu_drop_front(struct program *program)
{
    struct front *front = program->front;
    if (!front || !front->skipped)
        return;
    for (size_t i = 0; i < front->skipped; i++)
        step_free(program->steps[i]);
    program->step_count -= front->skipped;
    memmove(program->steps, program->steps + front->skipped,
            program->step_count * sizeof *program->steps);
    front->skipped = 0;
}

/* Where steps of the pieces find what is carried: in the whole program's values, or (`piece` < 0)
 * in their own places again. */
static void bind_carried(const struct program *program, int piece)
{
    const struct front *front = program->front;
    struct program *own = front->program;
    for (size_t i = 0; i < front->carried_count; i++) {
        const struct carried *c = &front->carried[i];
        own->data[c->value] =
            piece < 0 ? own->backend->arena + own->plan.places[c->value].offset
                      : (unsigned char *)program->data[c->value] + (size_t)piece * c->bytes;
    }
}

static enum status run_piece(const struct program *program, int piece, const void *const *inputs,
                             double *times, struct error *err)
{
    const struct front *front = program->front;
    struct program *own = front->program;
    for (size_t i = 0; i < own->input_value_count; i++)
        own->data[own->input_values[i]] =
            (char *)(uintptr_t)inputs[own->input_of[i]] + (size_t)piece * front->input_bytes[i];
    bind_carried(program, piece);
    return program_run_steps(own, 0, front->steps, times, err);
}

/* The rows of images that nobody asked for are run with the others all the same: they get those of
 * the first piece, so that an index among them is one that there is. */
static void repeat_first_piece(const struct program *program, int from)
{
    const struct front *front = program->front;
    for (size_t i = 0; i < front->carried_count; i++) {
        const struct carried *c = &front->carried[i];
        unsigned char *rows = program->data[c->value];
        for (int piece = from; c->is_first && c->bytes && piece < front->pieces; piece++)
            memcpy(rows + (size_t)piece * c->bytes, rows, c->bytes);
    }
}

enum status front_run(struct program *program, int images, const void *const *inputs, double *times,
                      struct error *err)
{
    const struct front *front = program->front;
    int pieces = images ? (images + front->images - 1) / front->images : front->pieces;
    pieces = pieces < front->pieces ? pieces : front->pieces;
    enum status status = STATUS_OK;
    for (int piece = 0; piece < pieces && status == STATUS_OK; piece++)
        status = run_piece(program, piece, inputs, times, err);
    bind_carried(program, -1);
    if (status == STATUS_OK)
        repeat_first_piece(program, pieces);
    return status;
}
