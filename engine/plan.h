/* The planner: gives every value of a graph a place before anything runs.
 *
 * No-grad semantics make it possible: an activation is needed from the node that makes it to its
 * last reader, then its bytes are used again. Values get offsets in one arena; Reshape-like nodes
 * share their input's bytes; nodes that can work in place (elementwise, convolutions that add a
 * residual) take over an operand that dies with them. The peak is therefore known exactly. */
#pragma once

#include "engine/graph.h"

enum place_kind {
    PLACE_NONE,     /* nobody makes or reads it */
    PLACE_CONSTANT, /* value->known, or packed by the backend */
    PLACE_INPUT,    /* the caller's buffer: graph->inputs[input] */
    PLACE_ARENA,
};

struct place {
    enum place_kind kind;
    size_t input;  /* PLACE_INPUT */
    size_t offset; /* PLACE_ARENA: bytes from the start of the arena, a multiple of 64 */
};

/* A block of the arena: one or more values that share bytes (views, in-place chains). */
struct plan_block {
    size_t bytes, offset;
    size_t first, last; /* node positions, inclusive: from its maker to its last reader */
};

/* What a plan knows of a value besides its place. */
struct plan_value {
    size_t bytes;
    int64_t rows;   /* the first dimension; 0: a scalar */
    size_t made;    /* position of the node that makes it */
    uint32_t block; /* index in plan->blocks; PLAN_NO_BLOCK for constants and inputs */
    uint64_t from;  /* inputs of the graph that it is made of: plan_input_bit */
};

#define PLAN_NO_BLOCK UINT32_MAX

/* One for each of the first inputs, one for all others together. */
static inline uint64_t plan_input_bit(size_t input)
{
    return UINT64_C(1) << (input < 63 ? input : 63);
}

struct plan {
    struct place *places;      /* by value->index */
    struct plan_value *values; /* by value->index */
    size_t value_count;
    struct plan_block *blocks;
    size_t block_count;
    size_t arena_bytes;
};

/* Which input's bytes may `node` write output 0 over, should that input die with it? -1: none. */
typedef int (*in_place_fn)(const struct node *node);

/* Every shape in the graph must be known. The caller frees with plan_done(). */
enum status plan_create(const struct graph *graph, in_place_fn in_place, struct plan *ret,
                        struct error *err) MUST_USE;

/* Gives the blocks that nodes at position `from` and behind it read or write new offsets, and
 * arena_bytes what these take: the nodes before are not run with this plan. What those have made
 * and later nodes read (plan_is_carried) is there from the start. 0: as plan_create does. */
enum status plan_place_from(struct plan *plan, size_t from, struct error *err) MUST_USE;

/* Is the block made before node `at` and read there or behind it, or an output of the graph? */
bool plan_is_carried(const struct plan_block *block, size_t at);

/* May the nodes before `at` be run `pieces` times by the plan `piece`, for `images` images each,
 * and the others by `whole`, a plan of the same graph for all of them? Then every carried block of
 * `whole` consists of that of the pieces, one after the other and each at a multiple of
 * TENSOR_ALIGN, or is the same for all: made of inputs alone that are. */
bool plan_takes_pieces(const struct plan *whole, const struct plan *piece, size_t at, int images,
                       int pieces);

/* Has the plan made output 0 of `node` the bytes of input 0 under another shape, so that there is
 * nothing to run? */
bool plan_shares_bytes(const struct plan *plan, const struct node *node);
void plan_done(struct plan *plan);
