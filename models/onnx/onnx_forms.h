/* One spelling for each operator: what older opsets and com.microsoft write differently becomes,
 * while the graph is built, what the operator's record means (engine/op/ops.h). */
#pragma once

#include "engine/graph/graph.h"
#include "engine/op/ops.h"

/* Rewrites a node whose operator is form->spec.op and that has the form's operands and attributes;
 * may add nodes in any order. STATUS_MODEL, STATUS_NO_MEMORY. */
struct onnx_rewrite;
struct onnx_form {
    const char *domain, *name;
    struct op_info
        spec; /* the operator that it becomes; opsets, operands, attributes of the form */
    void (*rewrite)(struct onnx_rewrite *r); /* NULL: only the name changes */
};

/* The form of that name and opset that differs from an operator's record; NULL: none. */
const struct onnx_form *onnx_form_find(const char *domain, const char *name, int opset);

/* What a node of that name may look like: of a form, or the operator's record. NULL: lensd does not
 * have it at that opset. */
const struct op_info *onnx_spec(const char *domain, const char *name, int opset);

/* `node` is the last of the graph; its attributes and operands are set. */
enum status onnx_form_rewrite(const struct onnx_form *form, struct graph *graph, struct node *node,
                              struct error *err) MUST_USE;
