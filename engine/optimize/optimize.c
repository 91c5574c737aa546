#include "engine/optimize/passes.h"

enum status optimize_kernels(struct graph *graph, const struct optimize_options *options,
                             struct error *err)
{
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
    if (options->bf16)
        TRY(pass_bf16(graph, options->bf16, err));
    return STATUS_OK;
}
