/* Activations that passes (and com.microsoft FusedConv) fold behind a convolution or a product. */
#include <math.h>

#include "engine/op/nn.h"

static double hard_sigmoid(double x, double alpha, double beta)
{
    double y = alpha * x + beta;
    return y < 0 ? 0 : y > 1 ? 1 : y;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double activate(const struct epilogue *epilogue, double x)
{
    double alpha = epilogue->alpha, beta = epilogue->beta;
    switch (epilogue->activation) {
    case ACTIVATION_NONE:
        return x;
    case ACTIVATION_RELU:
        return x < 0 ? 0 : x;
    case ACTIVATION_LEAKY_RELU:
        return x < 0 ? alpha * x : x;
    case ACTIVATION_CLIP:
        x = x < alpha ? alpha : x;
        return x > beta ? beta : x;
    case ACTIVATION_SIGMOID:
        return sigmoid(x);
    case ACTIVATION_HARD_SIGMOID:
        return hard_sigmoid(x, alpha, beta);
    case ACTIVATION_HARD_SWISH:
        return x * hard_sigmoid(x, 1.0 / 6, 0.5);
    case ACTIVATION_SILU:
        return x * sigmoid(alpha * x);
    case ACTIVATION_GELU:
        return 0.5 * x * (1 + erf(x * M_SQRT1_2));
    case ACTIVATION_GELU_TANH:
        return 0.5 * x * (1 + tanh(M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x)));
    case ACTIVATION_TANH:
        return tanh(x);
    case ACTIVATION_ELU:
        return x < 0 ? alpha * expm1(x) : x;
    }
    return x;
}

void epilogue_apply(const struct epilogue *epilogue, enum arithmetic arithmetic, void *values,
                    const void *residual, size_t count)
{
    if (epilogue->activation == ACTIVATION_NONE && !residual)
        return;
    if (arithmetic == ARITHMETIC_F64) {
        double *x = values;
        const double *r = residual;
        for (size_t i = 0; i < count; i++)
            x[i] = activate(epilogue, r ? x[i] + r[i] : x[i]);
        return;
    }
    float *x = values;
    const float *r = residual;
    for (size_t i = 0; i < count; i++)
        x[i] = (float)activate(epilogue, r ? x[i] + r[i] : x[i]);
}

size_t epilogue_residual(const struct kernel_args *args)
{
    const struct node *node = args->node;
    return node->epilogue.residual && node->input_count ? node->input_count - 1 : SIZE_MAX;
}
