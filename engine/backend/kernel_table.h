/* Each backend has a table of kernels. compile() uses the first kernel that claims a node and can
 * create a step for it. The optimizer reads the abilities of the first kernel that claims it. */
#pragma once

#include "engine/backend/claims.h"
#include "engine/passes/kernel_caps.h"

/* A row of the table. Each backend's own struct adds the function that creates a step. */
struct kernel {
    const char *name;
    enum op ops[8];        /* operators that `claim` is asked about; empty: all */
    kernel_claim_fn claim; /* sets the kernel's abilities in *ret */
};

/* Defines a claim function, which need not change *ret. */
#define KERNEL_CLAIM(name)                                                                         \
    static bool name(const struct node *node, __attribute__((unused)) struct kernel_caps *ret)

static inline bool kernel_claims(const struct kernel *kernel, const struct node *node,
                                 struct kernel_caps *ret)
{
    const size_t most = sizeof kernel->ops / sizeof *kernel->ops;
    bool is_listed = !kernel->ops[0];
    for (size_t i = 0; i < most && kernel->ops[i]; i++)
        is_listed = is_listed || kernel->ops[i] == node->op;
    *ret = (struct kernel_caps){.kernel = kernel->name, .in_place = -1};
    return is_listed && kernel->claim(node, ret);
}
