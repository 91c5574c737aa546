/* A document's members, left out or replaced by values of other types, one after the other. */
#pragma once

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <stdlib.h>

#include "engine/base/size.h"

/* Of lists with more entries only the first two change. */
enum { MUTATED_MOST = 12 };

typedef void mutation_check(void *context, const char *text);

static void check_mutation(const cJSON *root, mutation_check *check, void *context)
{
    char *text = cJSON_PrintUnformatted(root);
    cr_assert(text);
    check(context, text);
    free(text);
}

/* Recursion follows the nesting of a document of the test's own. */
static void mutate_members(const cJSON *root, cJSON *parent, mutation_check *check, void *context)
{
    static const char *const others[] = {"null", "true", "-1.5", "\"x\"", "[]", "{}"};
    static char renamed[] = "renamed";
    const int count = cJSON_GetArraySize(parent);
    cJSON *item = parent->child;
    for (int i = 0; i < (count > MUTATED_MOST ? 2 : count); i++, item = item->next) {
        const cJSON kept = *item;
        mutate_members(root, item, check, context);
        item->string = kept.string ? renamed : NULL;
        check_mutation(root, check, context);
        for (size_t k = 0; k < COUNT_OF(others); k++) {
            cJSON *other = cJSON_Parse(others[k]);
            cr_assert(other);
            *item = *other;
            item->next = kept.next;
            item->prev = kept.prev;
            item->string = kept.string;
            check_mutation(root, check, context);
            cJSON_Delete(other);
        }
        *item = kept;
    }
}

/* `check` gets each changed text. */
static inline void mutate_document(const char *text, mutation_check *check, void *context)
{
    cJSON *root = cJSON_Parse(text);
    cr_assert(root, "%s", text);
    mutate_members(root, root, check, context);
    cJSON_Delete(root);
}
