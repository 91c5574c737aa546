/* Private to engine/cpu/kernels/: exponential, logistic, hyperbolic tangent and error function of a
 * register of floats. tests/unit/engine/cpu/test_simd.c compares them with libm. */
#pragma once

#include "engine/cpu/kernels/vec.h"

/* e^x within 3 ulp: 0 below -87.33 (no subnormal results), inf above 88.72, NaN for NaN. Adding
 * 3 * 2^22 rounds to a whole number n and leaves n in the low bits; vec_scale_by() adds n to the
 * exponent. e^r is a Taylor polynomial, whose error is 1e-7 at the ends. */
ALWAYS_INLINE vec vec_exp(vec x)
{
    const vec low = vec_set(-87.3365447505f), high = vec_set(88.7228317f);
    const vec c = vec_min(high, vec_max(low, x)), magic = vec_set(12582912.0f);
    const vec shifted = vec_fma(c, vec_set(1.44269504088896341f), magic);
    const vec n = vec_sub(shifted, magic);
    /* c - n ln 2, with ln 2 in two parts */
    vec r = vec_fma(n, vec_set(-0.693359375f), c);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    vec p = vec_set(1.0f / 720);
    p = vec_fma(p, r, vec_set(1.0f / 120));
    p = vec_fma(p, r, vec_set(1.0f / 24));
    p = vec_fma(p, r, vec_set(1.0f / 6));
    p = vec_fma(p, r, vec_set(0.5f));
    p = vec_fma(p, r, vec_set(1));
    p = vec_fma(p, r, vec_set(1));
    const vec e = vec_select_less(high, x, vec_set(__builtin_inff()), vec_scale_by(p, shifted));
    return vec_max(vec_select_less(x, low, vec_zero(), e), x); /* NaN if x is; otherwise e^x > x */
}

/* 1 + 2^t, at most 1 + 2^126: the divisor of the logistic function, 1 / (1 + e^-x). Relative error
 * 2e-7; NaN for NaN. Rounds t as vec_exp() does. The polynomial is the minimax polynomial of its
 * degree. Additions and shifts run in parallel with the multiplications where possible. Dividing is
 * as quick as an estimate with a Newton step. */
ALWAYS_INLINE vec vec_gate_divisor(vec t)
{
    const vec c = vec_min(vec_set(126), vec_max(vec_set(-126), t)), magic = vec_set(12582912.0f);
    const vec shifted = vec_add(c, magic);
    const vec r = vec_sub(c, vec_sub(shifted, magic));
    vec p = vec_set(1.32647273e-3f);
    p = vec_fma(p, r, vec_set(9.67151279e-3f));
    p = vec_fma(p, r, vec_set(5.55073374e-2f));
    p = vec_fma(p, r, vec_set(2.40222421e-1f));
    p = vec_fma(p, r, vec_set(6.93146978e-1f));
    p = vec_fma(p, r, vec_set(1));
    return vec_fma(p, vec_scale_by(vec_set(1), shifted), vec_set(1)); /* NaN if t is */
}

#define MINUS_LOG2E (-1.44269504088896341f)

ALWAYS_INLINE vec vec_sigmoid(vec x)
{
    /* the result is 0 for x < -87 */
    const vec divisor = vec_gate_divisor(vec_mul(x, vec_set(MINUS_LOG2E)));
    return vec_select_less(x, vec_set(-87), vec_zero(), vec_div(vec_set(1), divisor));
}

/* x * sigmoid(alpha * x); slope: alpha * MINUS_LOG2E. */
ALWAYS_INLINE vec vec_silu(vec x, vec slope)
{
    return vec_div(x, vec_gate_divisor(vec_mul(x, slope)));
}

/* x * max(0, min(1, x / 6 + 1/2)) */
ALWAYS_INLINE vec vec_hard_swish(vec x)
{
    const vec gate = vec_fma(x, vec_set(1.0f / 6), vec_set(0.5f));
    return vec_mul(x, vec_clamp(gate, vec_zero(), vec_set(1)));
}

/* tanh: an odd polynomial near 0 (Cephes' tanhf), otherwise 1 - 2 / (e^2x + 1). */
ALWAYS_INLINE vec vec_tanh(vec x)
{
    const vec z = vec_mul(x, x);
    vec p = vec_set(-5.70498872745e-3f);
    p = vec_fma(p, z, vec_set(2.06390887954e-2f));
    p = vec_fma(p, z, vec_set(-5.37397155531e-2f));
    p = vec_fma(p, z, vec_set(1.33314422036e-1f));
    p = vec_fma(p, z, vec_set(-3.33332819422e-1f));
    const vec near = vec_fma(vec_mul(p, z), x, x), magnitude = vec_magnitude(x);
    /* 1 - 2 / (e^2x + 1) = 2 sigmoid(2x) - 1 */
    const vec gate = vec_sigmoid(vec_add(magnitude, magnitude));
    const vec far = vec_with_sign(vec_sub(vec_add(gate, gate), vec_set(1)), x);
    return vec_select_less(magnitude, vec_set(0.625f), near, far);
}

/* erf on [-4, 4] as a rational function (coefficients as in Eigen's generic_fast_erf_float), the
 * largest error is a few ulp; beyond 4 it is ±1 in float32. */
ALWAYS_INLINE vec vec_erf(vec x)
{
    const vec c = vec_min(vec_set(4), vec_max(vec_set(-4), x)), z = vec_mul(c, c);
    vec p = vec_set(-2.72614225801306e-10f);
    p = vec_fma(p, z, vec_set(2.77068142495902e-08f));
    p = vec_fma(p, z, vec_set(-2.10102402082508e-06f));
    p = vec_fma(p, z, vec_set(-5.69250639462346e-05f));
    p = vec_fma(p, z, vec_set(-7.34990630326855e-04f));
    p = vec_fma(p, z, vec_set(-2.95459980854025e-03f));
    p = vec_fma(p, z, vec_set(-1.60960333262415e-02f));
    vec q = vec_set(-1.45660718464996e-05f);
    q = vec_fma(q, z, vec_set(-2.13374055278905e-04f));
    q = vec_fma(q, z, vec_set(-1.68282697438203e-03f));
    q = vec_fma(q, z, vec_set(-7.37332916720468e-03f));
    q = vec_fma(q, z, vec_set(-1.42647390514189e-02f));
    return vec_div(vec_mul(c, p), q);
}

ALWAYS_INLINE vec vec_gelu(vec v)
{
    const vec half = vec_mul(v, vec_set(0.5f));
    return vec_fma(half, vec_erf(vec_mul(v, vec_set(0.70710678118654752f))), half);
}

ALWAYS_INLINE vec vec_gelu_tanh(vec v)
{
    const vec half = vec_mul(v, vec_set(0.5f)), square = vec_mul(v, v);
    const vec inner =
        vec_mul(vec_set(0.79788456080286536f), vec_fma(vec_mul(square, v), vec_set(0.044715f), v));
    return vec_fma(half, vec_tanh(inner), half);
}

ALWAYS_INLINE vec vec_elu(vec v, vec alpha)
{
    /* max(v, 0) + alpha * (e^min(v, 0) - 1): one of the terms is 0 */
    const vec negative = vec_mul(alpha, vec_sub(vec_exp(vec_min(vec_zero(), v)), vec_set(1)));
    return vec_add(vec_max(vec_zero(), v), negative);
}

/* slope: alpha * MINUS_LOG2E. Callers pass a constant `activation`. NaN stays NaN: minimum and
 * maximum return their second operand if one operand is NaN. */
ALWAYS_INLINE vec vec_activate(vec v, const enum activation activation, vec alpha, vec beta,
                               vec slope)
{
    switch (activation) {
    case ACTIVATION_NONE:
        return v;
    case ACTIVATION_RELU:
        return vec_max(vec_zero(), v);
    case ACTIVATION_LEAKY_RELU:
        return vec_fma(vec_min(vec_zero(), v), alpha, vec_max(vec_zero(), v));
    case ACTIVATION_CLIP:
        return vec_clamp(v, alpha, beta);
    case ACTIVATION_SIGMOID:
        return vec_sigmoid(v);
    case ACTIVATION_HARD_SIGMOID:
        return vec_clamp(vec_fma(v, alpha, beta), vec_zero(), vec_set(1));
    case ACTIVATION_HARD_SWISH:
        return vec_hard_swish(v);
    case ACTIVATION_SILU:
        return vec_silu(v, slope);
    case ACTIVATION_GELU:
        return vec_gelu(v);
    case ACTIVATION_GELU_TANH:
        return vec_gelu_tanh(v);
    case ACTIVATION_TANH:
        return vec_tanh(v);
    case ACTIVATION_ELU:
        return vec_elu(v, alpha);
    }
    return v;
}
