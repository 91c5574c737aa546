/* Runs the passes that prepare a graph with known shapes for a backend, in order; numbers its
 * layers. */
#include "engine/passes/passes.h"

/* An output that is an input is copied: outputs must not change when the caller's buffer does. */
static enum status copy_inputs_to_outputs(struct graph *graph, struct error *err)
{
    for (size_t i = 0; i < graph->output_count; i++) {
        struct value *input = graph->outputs[i];
        if (input->producer || input->known)
            continue;
        struct node *node = graph_add_node(graph, OP_IDENTITY, "copy", 1, 1);
        struct value *copy = graph_add_value(graph, "", input->dtype, &input->shape);
        if (!node || !copy)
            return edit_no_memory(err);
        node->inputs[0] = input;
        node_set_output(node, 0, copy);
        graph->outputs[i] = copy;
    }
    return STATUS_OK;
}

/* Behind the layout pass, whose Transposes are read through as well. */
static enum status fuse_access_maps(struct graph *graph, struct error *err)
{
    struct edit edit;
    enum status status = edit_init(&edit, graph, err);
    if (status == STATUS_OK)
        status = pass_attention(&edit, err);
    if (status == STATUS_OK)
        status = pass_moves(&edit, err);
    edit_done(&edit);
    return status;
}

enum status optimize_kernels(struct graph *graph, const struct optimize_options *options,
                             struct error *err)
{
    TRY(copy_inputs_to_outputs(graph, err));
    if (options->fuse) {
        struct edit edit;
        enum status status = edit_init(&edit, graph, err);
        if (status == STATUS_OK)
            status = pass_patterns(&edit, err);
        if (status == STATUS_OK)
            status = pass_epilogues(&edit, err);
        edit_done(&edit);
        TRY(status);
    }
    if (options->channels_last && options->takes_channels_last)
        TRY(pass_layout(graph, options, err));
    if (options->takes_gate || options->makes_mean)
        TRY(pass_gates(graph, options, err));
    if (options->takes_parts)
        TRY(pass_joins(graph, options, err));
    if (options->fuse && options->takes_quantised_epilogue)
        TRY(pass_quantised_epilogues(graph, options, err));
    if (options->fuse && options->access_maps)
        TRY(fuse_access_maps(graph, err));
    if (options->bf16)
        TRY(pass_bf16(graph, options, err));
    return STATUS_OK;
}
