/* A stand-in for libnvidia-ml.so.1: two GPUs, of which the second tells no power. */
#include <stdio.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *ret);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **ret);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **ret);
int nvmlDeviceGetUUID(void *device, char *ret, unsigned size);
int nvmlDeviceGetUtilizationRates(void *device, unsigned *ret);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *ret);
int nvmlDeviceGetPowerUsage(void *device, unsigned *ret);
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *ret);
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *ret);

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

static char gpus[2];

static unsigned index_of(const void *device)
{
    return (unsigned)((const char *)device - gpus);
}

int nvmlInit_v2(void)
{
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *ret)
{
    *ret = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **ret)
{
    *ret = &gpus[index];
    return SUCCESS;
}

/* As the stand-in's devices tell their places (fake_runtime.cc). */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **ret)
{
    const char *const places[] = {"00000000:10:00.0", "00000000:11:00.0"};
    for (unsigned i = 0; i < 2; i++)
        if (strcmp(bus, places[i]) == 0) {
            *ret = &gpus[i];
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}

int nvmlDeviceGetUUID(void *device, char *ret, unsigned size)
{
    snprintf(ret, size, "GPU-%u", index_of(device));
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *ret)
{
    ret[0] = 37 + index_of(device);
    ret[1] = 0;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *ret)
{
    ret[0] = 8000000000;
    ret[2] = 1000000000 * (index_of(device) + 1ull);
    ret[1] = ret[0] - ret[2];
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *ret)
{
    *ret = 123456;
    return index_of(device) == 0 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *ret)
{
    *ret = 700000;
    return index_of(device) == 0 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *ret)
{
    *ret = 5000500;
    return index_of(device) == 0 ? SUCCESS : NOT_SUPPORTED;
}
