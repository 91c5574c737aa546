/* The activations that an epilogue (struct epilogue in graph.h) can have, with their parameters
 * `alpha` and `beta`. CUDA's compiler also reads this file. */
#pragma once

/* X(NAME, 1 if it needs an exponential). */
/* clang-format off */
#define ACTIVATION_LIST(X)                                                                         \
    X(NONE, 0)                                                                                     \
    X(RELU, 0)                                                                                     \
    X(LEAKY_RELU, 0)   /* alpha */                                                                 \
    X(CLIP, 0)         /* clamps to [alpha, beta]; ReLU6 clamps to [0, 6] */                       \
    X(SIGMOID, 1)                                                                                  \
    X(HARD_SIGMOID, 0) /* max(0, min(1, alpha * x + beta)) */                                      \
    X(HARD_SWISH, 0)   /* x * hard_sigmoid(x), alpha 1/6, beta 1/2 */                              \
    X(SILU, 1)         /* x * sigmoid(alpha * x) */                                                \
    X(GELU, 1)         /* erf form */                                                              \
    X(GELU_TANH, 1)                                                                                \
    X(TANH, 1)                                                                                     \
    X(ELU, 1)          /* alpha */
/* clang-format on */

enum activation {
#define ACTIVATION_ENUM(name, is_exponential) ACTIVATION_##name,
    ACTIVATION_LIST(ACTIVATION_ENUM)
#undef ACTIVATION_ENUM
};
