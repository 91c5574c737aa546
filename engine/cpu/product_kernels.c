/* The kernels for convolutions and matrix products of floats. The first that claims a node and
 * creates a step runs it. Winograd's creates a step only where it is faster than the next. */
#include "engine/base/size.h"
#include "engine/cpu/lowering/lowering.h"

static const struct cpu_kernel *const kernels[] = {&cpu_winograd, &cpu_depthwise, &cpu_conv,
                                                   &cpu_matmul};

STEP_CREATE(lower_product)
{
    struct kernel_caps caps;
    for (size_t k = 0; k < COUNT_OF(kernels) && !*ret; k++)
        if (kernel_claims(&kernels[k]->kernel, lowering->node, &caps))
            TRY(kernels[k]->create(lowering, ret, err));
    return STATUS_OK;
}

/* A node has the abilities of all kernels that claim it, but KERNEL_PITCH only if each of them has
 * it, because any of them may run the node. */
KERNEL_CLAIM(product_claim)
{
    const struct value *bias = node_bias(node);
    struct kernel_caps caps;
    if (node->op == OP_CONV) {
        if (!claim_reads_image(node) || node->inputs[0]->shape.rank > 5 ||
            !is_f32_constant(node_input(node, 1)) || (bias && !is_f32_constant(bias)))
            return false;
        ret->can = KERNEL_CHANNELS_LAST;
    }
    bool is_claimed = false, have_pitch = true;
    for (size_t k = 0; k < COUNT_OF(kernels); k++)
        if (kernel_claims(&kernels[k]->kernel, node, &caps)) {
            is_claimed = true;
            have_pitch = have_pitch && caps.can & KERNEL_PITCH;
            ret->can |= caps.can & ~(unsigned)KERNEL_PITCH;
        }
    if (have_pitch)
        ret->can |= KERNEL_PITCH;
    ret->narrow = NARROW_PRODUCT;
    ret->in_place = claim_residual(node);
    return is_claimed;
}

const struct cpu_kernel cpu_product = {{"product", {OP_CONV, OP_GEMM, OP_MATMUL}, product_claim},
                                       lower_product};
