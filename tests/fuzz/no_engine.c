/* Fakes of what the server's parsers link with but do not need: the model host, calibration
 * pictures, GPUs. */
#include "engine/backend/cuda_module.h"
#include "engine/runtime/nvml.h"
#include "server/image/photo_files.h"
#include "server/precision/internal.h"
#include "server/schedule/runtime/model_host.h"
#include "tests/fuzz/target.h"

bool predict_request_pin(struct predict_request *request)
{
    (void)request;
    abort();
}

void model_host_cancel(struct model_host *model_host, struct predict_request *request)
{
    (void)model_host;
    (void)request;
    abort();
}

void model_host_end_waits(struct model_host *model_host)
{
    (void)model_host;
}

enum status photo_files_add_folder(struct photo_files *files, const char *folder, size_t most,
                                   struct error *err)
{
    (void)files;
    (void)folder;
    (void)most;
    return error_set(err, STATUS_NOT_FOUND, "no pictures here");
}

void photo_files_done(struct photo_files *files)
{
    (void)files;
}

bool photo_files_has_ending(const char *name)
{
    (void)name;
    return false;
}

const struct cuda_module *cuda_module(const char **ret_reason)
{
    if (ret_reason)
        *ret_reason = "no CUDA here";
    return NULL;
}

bool nvml_used_bytes(const char *bus, uint64_t *ret)
{
    (void)bus;
    (void)ret;
    return false;
}
