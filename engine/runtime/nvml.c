/* Declares the few functions and types of nvml.h that lensd uses, because lensd builds without the
 * toolkit that has the header. Source: NVML API reference, versioned symbols. */
#include "engine/runtime/nvml.h"

#include <math.h>
#include <pthread.h>

#include "engine/base/library.h"
#include "engine/base/size.h"

typedef struct nvml_device *nvml_device; /* nvmlDevice_t */

struct nvml_utilization { /* nvmlUtilization_t: percent */
    unsigned gpu, memory;
};

struct nvml_memory { /* nvmlMemory_t: bytes */
    unsigned long long total, free, used;
};

/* Each function returns 0 (NVML_SUCCESS) or an error. */
static struct {
    int (*init)(void);
    int (*count)(unsigned *ret);
    int (*handle)(unsigned index, nvml_device *ret);
    int (*by_bus)(const char *bus, nvml_device *ret);
    int (*uuid)(nvml_device device, char *ret, unsigned size);
    int (*utilization)(nvml_device device, struct nvml_utilization *ret);
    int (*memory)(nvml_device device, struct nvml_memory *ret);
    int (*power)(nvml_device device, unsigned *ret_milliwatts);
    int (*power_limit)(nvml_device device, unsigned *ret_milliwatts);
    int (*energy)(nvml_device device, unsigned long long *ret_millijoules);
} nvml;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_there;

static void load(void)
{
    static const struct library_function functions[] = {
        {"nvmlInit_v2", &nvml.init},
        {"nvmlDeviceGetCount_v2", &nvml.count},
        {"nvmlDeviceGetHandleByIndex_v2", &nvml.handle},
        {"nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_bus},
        {"nvmlDeviceGetUUID", &nvml.uuid},
        {"nvmlDeviceGetUtilizationRates", &nvml.utilization},
        {"nvmlDeviceGetMemoryInfo", &nvml.memory},
        {"nvmlDeviceGetPowerUsage", &nvml.power},
        {"nvmlDeviceGetEnforcedPowerLimit", &nvml.power_limit},
        {"nvmlDeviceGetTotalEnergyConsumption", &nvml.energy},
    };
    is_there =
        library_load("libnvidia-ml.so.1", functions, COUNT_OF(functions)) && nvml.init() == 0;
}

static bool read_gpu(unsigned index, struct gpu_reading *ret)
{
    nvml_device device;
    struct nvml_utilization utilization;
    struct nvml_memory memory;
    unsigned milliwatts;
    unsigned long long millijoules;
    *ret = (struct gpu_reading){.utilization = NAN,
                                .total_bytes = NAN,
                                .used_bytes = NAN,
                                .power = NAN,
                                .power_limit = NAN,
                                .energy = NAN};
    if (nvml.handle(index, &device) != 0 || nvml.uuid(device, ret->uuid, sizeof ret->uuid) != 0)
        return false;
    if (nvml.utilization(device, &utilization) == 0)
        ret->utilization = utilization.gpu / 100.0;
    if (nvml.memory(device, &memory) == 0) {
        ret->total_bytes = (double)memory.total;
        ret->used_bytes = (double)memory.used;
    }
    if (nvml.power(device, &milliwatts) == 0)
        ret->power = milliwatts / 1000.0;
    if (nvml.power_limit(device, &milliwatts) == 0)
        ret->power_limit = milliwatts / 1000.0;
    if (nvml.energy(device, &millijoules) == 0)
        ret->energy = (double)millijoules / 1000.0;
    return true;
}

bool nvml_used_bytes(const char *bus, uint64_t *ret)
{
    nvml_device device;
    struct nvml_memory memory;
    pthread_once(&once, load);
    if (!is_there || nvml.by_bus(bus, &device) != 0 || nvml.memory(device, &memory) != 0)
        return false;
    *ret = memory.used;
    return true;
}

size_t nvml_read(struct gpu_reading *ret, size_t max)
{
    unsigned count = 0;
    size_t read = 0;
    pthread_once(&once, load);
    if (!is_there || nvml.count(&count) != 0)
        return 0;
    for (unsigned i = 0; i < count && read < max; i++)
        read += read_gpu(i, &ret[read]);
    return read;
}
