/* LSTM, GRU and RNN: equations written out for one hidden number, what lies beyond sequence_lens,
 * and sentences of refusals. The folders of tests/data/recurrent compare them with ONNX Runtime. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

static void run_ok(struct one_node *one)
{
    cr_assert_eq(one_run(one), STATUS_OK, "%s", one->err.message);
}

static void expect_near(const struct one_node *one, size_t i, const double *expected, size_t n)
{
    cr_assert_eq(shape_count(&one->out[i]->shape), n);
    for (size_t k = 0; k < n; k++)
        cr_expect_float_eq(tensor_number(one->out[i], k), expected[k], 1e-6, "output %zu[%zu]", i,
                           k);
}

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

/* One direction, `gates` gates of one hidden number, `steps` steps of `batch` images of one number;
 * weights 0.1, 0.2 …, of R 0.3, 0.4 … */
static void start(struct one_node *one, enum op op, int64_t gates, int64_t steps, int64_t batch,
                  const float *x)
{
    static const float weights[] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
    one_start(one, op, 14, op == OP_LSTM ? 8 : 6, op == OP_LSTM ? 3 : 2);
    one_input(one, 0, DTYPE_F32, SHAPE(steps, batch, 1), x);
    one_input(one, 1, DTYPE_F32, SHAPE(1, gates, 1), weights);
    one_input(one, 2, DTYPE_F32, SHAPE(1, gates, 1), weights + 2);
    one_int(one, "hidden_size", 1);
}

Test(ops_recurrent, lstm_has_gates_in_the_order_i_o_f_c)
{
    const float bias[] = {0.5f, -0.5f, 1, 0.25f, 0, 0, 0, 0.25f}, peepholes[] = {0.7f, 0.8f, 0.9f};
    struct one_node one;
    start(&one, OP_LSTM, 4, 1, 1, (const float[]){2});
    one_input(&one, 3, DTYPE_F32, SHAPE(1, 8), bias);
    one_input(&one, 5, DTYPE_F32, SHAPE(1, 1, 1), (const float[]){0.6f});
    one_input(&one, 6, DTYPE_F32, SHAPE(1, 1, 1), (const float[]){-0.4f});
    one_input(&one, 7, DTYPE_F32, SHAPE(1, 3), peepholes);
    run_ok(&one);
    const double h = 0.6, c = -0.4;
    const double i = logistic(2 * 0.1 + h * 0.3 + 0.5 + 0.7 * c);
    const double f = logistic(2 * 0.3 + h * 0.5 + 1 + 0.9 * c);
    const double cell = f * c + i * tanh(2 * 0.4 + h * 0.6 + 0.5);
    const double o = logistic(2 * 0.2 + h * 0.4 - 0.5 + 0.8 * cell);
    expect_near(&one, 0, (const double[]){o * tanh(cell)}, 1);
    expect_near(&one, 1, (const double[]){o * tanh(cell)}, 1);
    expect_near(&one, 2, (const double[]){cell}, 1);
    one_end(&one);
}

Test(ops_recurrent, gru_resets_the_state_or_its_product)
{
    const float bias[] = {0, 0, 0, 0, 0, 0.75f};
    for (int after = 0; after < 2; after++) {
        struct one_node one;
        start(&one, OP_GRU, 3, 1, 1, (const float[]){2});
        one_input(&one, 3, DTYPE_F32, SHAPE(1, 6), bias);
        one_input(&one, 5, DTYPE_F32, SHAPE(1, 1, 1), (const float[]){0.6f});
        one_int(&one, "linear_before_reset", after);
        run_ok(&one);
        const double h = 0.6, z = logistic(2 * 0.1 + h * 0.3), r = logistic(2 * 0.2 + h * 0.4);
        const double product = after ? r * (h * 0.5 + 0.75) : r * h * 0.5 + 0.75;
        expect_near(&one, 1, (const double[]){(1 - z) * tanh(2 * 0.3 + product) + z * h}, 1);
        one_end(&one);
    }
}

/* The reverse direction begins at each image's last step; beyond it Y is 0. */
Test(ops_recurrent, sequences_end_where_sequence_lens_says)
{
    const float x[] = {1, 2, 3, 4, 5, 6}; /* [3, 2, 1] */
    struct one_node one;
    start(&one, OP_RNN, 1, 3, 2, x);
    one_input(&one, 4, DTYPE_I32, SHAPE(2), (const int32_t[]){3, 2});
    one_string(&one, "direction", "reverse");
    run_ok(&one);
    const double a2 = tanh(0.5), a1 = tanh(0.3 + 0.3 * a2), a0 = tanh(0.1 + 0.3 * a1);
    const double b1 = tanh(0.4), b0 = tanh(0.2 + 0.3 * b1);
    expect_near(&one, 0, (const double[]){a0, b0, a1, b1, a2, 0}, 6);
    expect_near(&one, 1, (const double[]){a0, b0}, 2);
    one_end(&one);
}

/* Float64 operands are read in place, and an empty tensor has no memory. */
Test(ops_recurrent, empty_steps_of_float64_multiply_to_zero)
{
    struct one_node one;
    one_start(&one, OP_RNN, 14, 6, 1);
    one_input(&one, 0, DTYPE_F64, SHAPE(2, 1, 0), NULL);
    one_input(&one, 1, DTYPE_F64, SHAPE(1, 1, 0), NULL);
    one_input(&one, 2, DTYPE_F64, SHAPE(1, 1, 1), (const double[]){0.5});
    one_input(&one, 5, DTYPE_F64, SHAPE(1, 1, 1), (const double[]){1});
    one_int(&one, "hidden_size", 1);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){tanh(0.5), tanh(0.5 * tanh(0.5))}, 2);
    one_end(&one);
}

Test(ops_recurrent, refusals_name_what_is_wrong)
{
    static const struct {
        const char *attribute, *text;
        int32_t length;
        enum status status;
        const char *words;
    } cases[] = {
        {"direction", "sideways", 1, STATUS_MODEL, "forward reverse bidirectional"},
        {"direction", "bidirectional", 1, STATUS_SHAPE,
         "R has shape [1, 1, 1], expected [2, 1, 1]"},
        {"direction", "forward", 2, STATUS_INVALID, "sequence_lens[0] is 2, expected 0 to 1"},
        {"direction", "forward", -1, STATUS_INVALID, "sequence_lens[0] is -1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        start(&one, OP_RNN, 1, 1, 1, (const float[]){1});
        one_input(&one, 4, DTYPE_I32, SHAPE(1), &cases[i].length);
        one_string(&one, cases[i].attribute, cases[i].text);
        one_fails(&one, cases[i].status, cases[i].words);
        one_end(&one);
    }
    struct one_node one;
    start(&one, OP_RNN, 1, 1, 1, (const float[]){1});
    one_int(&one, "layout", 2);
    one_fails(&one, STATUS_MODEL, "layout is 2");
    one_end(&one);
    start(&one, OP_GRU, 4, 1, 1, (const float[]){1});
    one_fails(&one, STATUS_SHAPE, "R has shape [1, 4, 1], expected [1, 3, 1]");
    one_end(&one);
}
