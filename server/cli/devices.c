/* lensd devices: lists the machine's devices. */
#include <stdio.h>

#include "server/answers/status.h"
#include "server/cli/commands.h"

static void print_device(const struct device_info *device)
{
    printf("%-8s %s\n", DEVICE_STRING(device->id), device->name);
    if (!device->usable) {
        printf("         not usable: %s\n", device->reason);
        return;
    }
    printf("         memory  %s, %s free\n", SIZE_STRING(device->total_bytes),
           SIZE_STRING(device->free_bytes));
    if (device->id.kind == DEVICE_CPU)
        printf("         threads %d of %d usable cores\n", device->threads, device->cores);
    printf("         kind    %s; fast at fp32%s%s%s\n", device->isa, device->bf16 ? ", bf16" : "",
           device->fp16 ? ", fp16" : "", device->int8 ? ", int8" : "");
}

int command_devices(const struct config *config)
{
    if (config->json)
        return print_json(status_devices_json(NULL, NULL));
    struct device_info devices[DEVICE_MAX];
    size_t count = device_list(devices, DEVICE_MAX);
    for (size_t i = 0; i < count; i++)
        print_device(&devices[i]);
    return 0;
}
