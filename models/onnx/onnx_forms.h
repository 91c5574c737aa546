/* Rewrites older opsets' and com.microsoft's forms of operators, while the graph is built, into the
 * one form of the operator's record (engine/op/ops.h). */
#pragma once

#include "engine/graph/graph.h"
#include "engine/op/ops.h"

/* An older or fused form of an operator. `rewrite` changes a node whose operator is spec.op and
 * that has the form's operands and attributes. `rewrite` may append nodes, which graph_sort()
 * orders later. Errors: STATUS_MODEL, STATUS_UNSUPPORTED, STATUS_NO_MEMORY. */
struct onnx_rewrite;
struct onnx_form {
    const char *domain, *name;
    struct op_info spec; /* the form's opsets, operands and attributes; spec.op is the operator
                            after the rewrite, or OP_NONE for a constant */
    void (*rewrite)(struct onnx_rewrite *r); /* NULL: only the name changes */
};

/* Returns the form with this name and opset if it differs from the operator's record, otherwise
 * NULL. */
const struct onnx_form *onnx_form_find(const char *domain, const char *name, int opset);

/* Returns the operands and attributes that a node with this name may have: the operands and
 * attributes of a form or of the operator's record. NULL: lensd does not support the node at this
 * opset. */
const struct op_info *onnx_spec(const char *domain, const char *name, int opset);

/* Checks the operands of `node`, which the caller has just added with its attributes, and rewrites
 * the node. Errors: those of `rewrite`. */
enum status onnx_form_rewrite(const struct onnx_form *form, struct graph *graph, struct node *node,
                              struct error *err) MUST_USE;
