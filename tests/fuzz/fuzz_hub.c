/* The list of a hub's repository. What is read has a commit and paths without control bytes; a
 * refusal has a sentence. */
#include <stdlib.h>
#include <string.h>

#include "proto/json.h"
#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hub_list list;
    struct error err = {0};
    /* An exact copy: a read past the end is seen. */
    char *copy = malloc(size + !size);
    HOLDS(copy);
    memcpy(copy, data, size);
    if (hub_list_read(copy, size, &list, &err) == STATUS_OK) {
        HOLDS(strlen(list.commit) == 40 && list.count <= HUB_FILES_MAX);
        for (size_t i = 0; i < list.count; i++)
            for (const char *at = list.paths[i]; *at; at++)
                HOLDS((unsigned char)*at >= ' ');
    } else {
        HOLDS(err.message[0]);
    }
    hub_list_done(&list);
    free(copy);
    return 0;
}
