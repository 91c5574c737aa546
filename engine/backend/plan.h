/* The memory planner: assigns memory to every value of a graph before the first run.
 *
 * Inference has no backward pass, so an activation is needed only until its last reader has run;
 * then its bytes are reused. Values get offsets in one arena. Reshape-like nodes share their
 * input's bytes. Nodes that work in place (elementwise, convolutions that add a residual) overwrite
 * an operand that has no later reader. A value that only a Concat of channels reads can be written
 * directly into the Concat's result. The plan's size is the exact peak. */
#pragma once

#include "engine/passes/kernel_caps.h"

enum place_kind {
    PLACE_NONE,     /* no node produces or reads the value */
    PLACE_CONSTANT, /* a constant: value->known, or packed by the backend */
    PLACE_INPUT,    /* the caller's buffer for graph->inputs[input] */
    PLACE_ARENA,
};

struct place {
    enum place_kind kind;
    size_t input;  /* PLACE_INPUT */
    size_t offset; /* PLACE_ARENA: bytes from its start, a multiple of 64 (with a pitch: of 16) */
    size_t pitch;  /* if the value is a part of a Concat's result: bytes between the starts of its
                      rows (last dimension), a multiple of 16; 0: rows are contiguous */
};

struct plan {
    struct place *places; /* by value->index */
    size_t value_count;
    size_t arena_bytes;
    size_t outputs_at; /* with `outputs_last`: start of the outputs, the last part of the arena;
                          otherwise, or without outputs: arena_bytes */
};

/* Every shape in the graph must be known. `claim` is the backend's function; the plan uses in_place
 * and KERNEL_PITCH of the claim. With `outputs_last`, outputs lie after all other values. The
 * caller frees the plan with plan_done(). */
enum status plan_create(const struct graph *graph, kernel_claim_fn claim, bool outputs_last,
                        struct plan *ret, struct error *err) MUST_USE;

/* True if `node` need not run: output 0 is missing, or has the bytes of input 0 in another shape.
 */
bool plan_shares_bytes(const struct plan *plan, const struct node *node);
void plan_done(struct plan *plan);
