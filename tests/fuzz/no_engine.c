/* Fakes of what the server's parsers link with but do not need: the model host, calibration
 * pictures, GPUs. */
#include "engine/backend/cuda_module.h"
#include "engine/runtime/nvml.h"
#include "server/precision/probes.h"
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

enum status probes_list_folder(const char *folder, char ***ret, size_t *ret_count,
                               struct error *err)
{
    (void)folder;
    (void)ret;
    (void)ret_count;
    return error_set(err, STATUS_NOT_FOUND, "no pictures here");
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
