/* Keeps the parts of a text in one buffer, and makes parts of a pattern's matches. */
#include "models/text/parts.h"

#include <string.h>

#include "engine/base/array.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"

void text_parts_done(struct text_parts *parts)
{
    FREE_ALL(parts->text, parts->list);
    memset(parts, 0, sizeof *parts);
}

char *text_parts_room(struct text_parts *parts, size_t more)
{
    if (parts->failed)
        return NULL;
    if (more > PARTS_BYTES_MAX - parts->size)
        parts->failed = STATUS_TOO_LARGE;
    else if (!array_reserve(&parts->text, &parts->room, parts->size + more, 1))
        parts->failed = STATUS_NO_MEMORY;
    return parts->failed || !parts->text ? NULL : parts->text + parts->size;
}

void text_parts_add(struct text_parts *parts, const char *text, size_t size)
{
    char *to = text_parts_room(parts, size);
    if (!to || !size)
        return;
    memcpy(to, text, size);
    parts->size += size;
}

void text_parts_put(struct text_parts *parts, uint32_t character)
{
    char *to = text_parts_room(parts, 4);
    if (to)
        parts->size += utf8_put(character, to);
}

void text_parts_end(struct text_parts *parts, int32_t token, bool at_start)
{
    const struct text_part *last = parts->count ? &parts->list[parts->count - 1] : NULL;
    const size_t start = last ? last->start + last->size : 0;
    if (parts->failed || start == parts->size)
        return;
    if (!array_reserve(&parts->list, &parts->list_room, parts->count + 1, sizeof *parts->list)) {
        parts->failed = STATUS_NO_MEMORY;
        return;
    }
    parts->list[parts->count++] = (struct text_part){start, parts->size - start, token, at_start};
}

void text_parts_add_part(struct text_parts *parts, const char *text, size_t size, int32_t token,
                         bool at_start)
{
    text_parts_add(parts, text, size);
    text_parts_end(parts, token, at_start);
}

void splitter_end(struct splitter *splitter)
{
    if (splitter->is_open)
        text_parts_add_part(splitter->to, splitter->text + splitter->start,
                            splitter->end - splitter->start, -1,
                            splitter->at_start && !splitter->start);
    splitter->is_open = false;
}

void splitter_add(struct splitter *splitter, size_t start, size_t end, bool is_match)
{
    const bool was_match = splitter->was_match;
    bool joins = false;
    if (splitter->behavior == SPLIT_CONTIGUOUS)
        joins = is_match == was_match;
    else if (splitter->behavior == SPLIT_MERGED_WITH_PREVIOUS)
        joins = is_match && !was_match;
    else if (splitter->behavior == SPLIT_MERGED_WITH_NEXT)
        joins = !is_match && was_match;
    splitter->was_match = is_match;
    if (!joins || !splitter->is_open) {
        splitter_end(splitter);
        splitter->start = start;
        splitter->is_open = splitter->behavior != SPLIT_REMOVED || !is_match;
    }
    splitter->end = end;
}
