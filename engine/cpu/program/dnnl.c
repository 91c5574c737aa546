/* What programs need of oneDNN: its errors in words, its names of types, its activations. */
#include "engine/cpu/program/program.h"

enum status dnnl_check(dnnl_status_t status, const char *what, struct error *err)
{
    switch (status) {
    case dnnl_success:
        return STATUS_OK;
    case dnnl_out_of_memory:
        return error_set(err, STATUS_NO_MEMORY, "oneDNN: out of memory (%s)", what);
    case dnnl_unimplemented:
        return error_set(err, STATUS_UNSUPPORTED, "oneDNN: no implementation (%s)", what);
    case dnnl_invalid_arguments:
        return error_set(err, STATUS_INTERNAL, "oneDNN: invalid arguments (%s)", what);
    default:
        return error_set(err, STATUS_INTERNAL, "oneDNN: status %d (%s)", (int)status, what);
    }
}

dnnl_data_type_t dnnl_type(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BF16:
        return dnnl_bf16;
    case DTYPE_U8:
        return dnnl_u8;
    case DTYPE_I8:
        return dnnl_s8;
    case DTYPE_I32:
        return dnnl_s32;
    default:
        return dnnl_f32;
    }
}

static bool append(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha, float beta)
{
    return dnnl_post_ops_append_eltwise(ops, 1.0f, kind, alpha, beta) == dnnl_success;
}

bool dnnl_append_activation(dnnl_post_ops_t ops, const struct epilogue *e)
{
    switch (e->activation) {
    case ACTIVATION_NONE:
        return true;
    case ACTIVATION_RELU:
        return append(ops, dnnl_eltwise_relu, 0, 0);
    case ACTIVATION_LEAKY_RELU:
        return append(ops, dnnl_eltwise_relu, e->alpha, 0);
    case ACTIVATION_CLIP:
        return append(ops, dnnl_eltwise_clip, e->alpha, e->beta);
    case ACTIVATION_SIGMOID:
        return append(ops, dnnl_eltwise_logistic, 0, 0);
    case ACTIVATION_HARD_SIGMOID:
        return append(ops, dnnl_eltwise_linear, e->alpha, e->beta) &&
               append(ops, dnnl_eltwise_clip, 0, 1);
    case ACTIVATION_HARD_SWISH:
        return append(ops, dnnl_eltwise_hardswish, 0, 0);
    case ACTIVATION_SILU:
        return append(ops, dnnl_eltwise_swish, e->alpha, 0);
    case ACTIVATION_GELU:
        return append(ops, dnnl_eltwise_gelu_erf, 0, 0);
    case ACTIVATION_GELU_TANH:
        return append(ops, dnnl_eltwise_gelu_tanh, 0, 0);
    case ACTIVATION_TANH:
        return append(ops, dnnl_eltwise_tanh, 0, 0);
    case ACTIVATION_ELU:
        return append(ops, dnnl_eltwise_elu, e->alpha, 0);
    }
    return false;
}
