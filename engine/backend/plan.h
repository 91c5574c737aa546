/* The planner: gives every value of a graph a place before anything runs.
 *
 * No-grad semantics make it possible: an activation is needed from the node that makes it to its
 * last reader, then its bytes are used again. Values get offsets in one arena; Reshape-like nodes
 * share their input's bytes; nodes that can work in place (elementwise, convolutions that add a
 * residual) take over an operand that dies with them; what only a Concat of channels reads can be
 * written into its result. The peak is therefore known exactly. */
#pragma once

#include "engine/passes/kernel_caps.h"

enum place_kind {
    PLACE_NONE,     /* nobody makes or reads it */
    PLACE_CONSTANT, /* value->known, or packed by the backend */
    PLACE_INPUT,    /* the caller's buffer: graph->inputs[input] */
    PLACE_ARENA,
};

struct place {
    enum place_kind kind;
    size_t input;  /* PLACE_INPUT */
    size_t offset; /* PLACE_ARENA: bytes from the start of the arena, a multiple of 64, or of 16
                      with a pitch */
    size_t pitch;  /* bytes from a row (the last dimension) to the next, a multiple of 16: the value
                      lies inside the result of the Concat that reads it; 0: rows are contiguous */
};

struct plan {
    struct place *places; /* by value->index */
    size_t value_count;
    size_t arena_bytes;
    size_t outputs_at; /* with `outputs_last`: from here on lie outputs, and nothing else; without,
                          or without outputs, arena_bytes */
};

/* Every shape in the graph must be known. `claim` is the backend's: of kernel_caps, in_place and
 * KERNEL_PITCH count. `outputs_last`: outputs lie after all other values. The caller frees with
 * plan_done(). */
enum status plan_create(const struct graph *graph, kernel_claim_fn claim, bool outputs_last,
                        struct plan *ret, struct error *err) MUST_USE;

/* Has the plan made output 0 of `node` the bytes of input 0 under another shape, so that there is
 * nothing to run? */
bool plan_shares_bytes(const struct plan *plan, const struct node *node);
void plan_done(struct plan *plan);
