/* Reads the operands of LSTM, GRU, RNN and OP_RECURRENCE for inference, passes and kernels.
 * OP_RECURRENCE is the part of the other three operators that runs step by step.
 *
 * Operands of all four: X [steps, batch, inputs] ([batch, steps, inputs] with layout 1), W
 * [directions, gates * hidden, inputs], R [directions, gates * hidden, hidden], B [directions, 2 *
 * gates * hidden] (of W, then of R), sequence_lens [batch], initial_h and initial_c [directions,
 * batch, hidden] ([batch, directions, hidden]), P [directions, 3 * hidden]. Gates are i, o, f, c of
 * LSTM; z, r, h of GRU; i of RNN; P has i, o, f. OP_RECURRENCE has no W: its X is X times the
 * transposes of W, [steps, batch, directions * gates * hidden], and B is not added yet. Its
 * attribute "cell" is an enum recurrent_cell.
 *
 * Source: ONNX LSTM-22, GRU-22, RNN-22. Where ONNX leaves a choice, lensd follows ONNX Runtime:
 * each activation with an alpha takes the next number of activation_alpha, and each activation with
 * a beta takes the next number of activation_beta. */
#pragma once

#include "engine/graph/graph.h"

enum recurrent_cell { CELL_LSTM, CELL_GRU, CELL_RNN };

enum recurrent_operand {
    RECURRENT_X,
    RECURRENT_W,
    RECURRENT_R,
    RECURRENT_B,
    RECURRENT_LENGTHS,
    RECURRENT_H,
    RECURRENT_C,
    RECURRENT_P,
    RECURRENT_OPERANDS
};

/* X(NAME, "Name", has alpha, has beta, their default values). */
#define RECURRENT_FUNCTIONS(X)                                                                     \
    X(SIGMOID, "Sigmoid", 0, 0, 0, 0)                                                              \
    X(TANH, "Tanh", 0, 0, 0, 0)                                                                    \
    X(RELU, "Relu", 0, 0, 0, 0)                                                                    \
    X(HARD_SIGMOID, "HardSigmoid", 1, 1, 0.2f, 0.5f)                                               \
    X(LEAKY_RELU, "LeakyRelu", 1, 0, 0.01f, 0)                                                     \
    X(ELU, "Elu", 1, 0, 1, 0)                                                                      \
    X(THRESHOLDED_RELU, "ThresholdedRelu", 1, 0, 1, 0)                                             \
    X(AFFINE, "Affine", 1, 1, 1, 0)                                                                \
    X(SCALED_TANH, "ScaledTanh", 1, 1, 1, 1)                                                       \
    X(SOFTSIGN, "Softsign", 0, 0, 0, 0)                                                            \
    X(SOFTPLUS, "Softplus", 0, 0, 0, 0)

enum recurrent_function {
#define RECURRENT_ENUM(name, text, alpha, beta, a, b) FUNCTION_##name,
    RECURRENT_FUNCTIONS(RECURRENT_ENUM)
#undef RECURRENT_ENUM
};

struct recurrent {
    enum recurrent_cell cell;
    size_t steps, batch, inputs, hidden, directions;
    size_t width;         /* gates * hidden */
    bool batch_first;     /* layout 1 */
    bool starts_reversed; /* the first direction runs in reverse */
    bool is_coupled;      /* LSTM's input_forget: the forget gate is 1 - i */
    bool resets_product;  /* GRU's linear_before_reset */
    bool clips;           /* inputs of the gates' activations are clipped to [-clip, clip] */
    float clip;
    struct {
        enum recurrent_function function;
        float alpha, beta;
    } activation[2][3]; /* [direction][f, g, h] */
};

/* Reads and checks attributes and shapes. OP_RECURRENCE: `w` is NULL. STATUS_SHAPE,
 * STATUS_MODEL. */
enum status recurrent_init(const struct node *node, const struct shape *x, const struct shape *w,
                           const struct shape *r, struct recurrent *ret,
                           struct error *err) MUST_USE;

/* Row of X for time step t of image n. */
static inline size_t recurrent_row(const struct recurrent *r, size_t t, size_t n)
{
    return r->batch_first ? n * r->steps + t : t * r->batch + n;
}

/* Offset in Y of the `hidden` numbers of step t, direction d and image n. recurrent_state() returns
 * the offset in Y_h, Y_c and the initial states. */
static inline size_t recurrent_result(const struct recurrent *r, size_t t, size_t d, size_t n)
{
    const size_t row = r->batch_first ? recurrent_row(r, t, n) * r->directions + d
                                      : (t * r->directions + d) * r->batch + n;
    return row * r->hidden;
}

static inline size_t recurrent_state(const struct recurrent *r, size_t d, size_t n)
{
    return (r->batch_first ? n * r->directions + d : d * r->batch + n) * r->hidden;
}

/* Number of time steps of image n. `lengths` is the operand; NULL: every image has all steps. */
static inline size_t recurrent_length(const struct recurrent *r, const int32_t *lengths, size_t n)
{
    return lengths ? (size_t)lengths[n] : r->steps;
}

/* The time step that a direction reads at its step s of `length`. */
static inline size_t recurrent_time(const struct recurrent *r, size_t d, size_t s, size_t length)
{
    return r->starts_reversed || d == 1 ? length - 1 - s : s;
}

/* STATUS_INVALID unless every length is between 0 and the number of steps. NULL is fine. */
enum status recurrent_check_lengths(const struct recurrent *r, const int32_t *lengths,
                                    struct error *err) MUST_USE;
