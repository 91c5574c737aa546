/* Parses traceparent and creates the one in the answer. */
#include "server/http/transport/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool trace_begin(struct trace *trace, const char *traceparent, uint64_t random)
{
    struct trace read = {.flags = 0};
    char version[3], flags[3];
    int length = 0;
    *trace = read;
    /* Capitals are not allowed. The parts are complete if together they have all 55 bytes. */
    if (!traceparent ||
        sscanf(traceparent, "%2[0-9a-f]-%32[0-9a-f]-%16[0-9a-f]-%2[0-9a-f]%n", version, read.id,
               read.parent, flags, &length) != 4 ||
        length != 55 || !strcmp(version, "ff"))
        return false;
    /* Version 00 ends after the flags; a later version may have more. */
    if (traceparent[length] && (!strcmp(version, "00") || traceparent[length] != '-'))
        return false;
    if (!read.id[strspn(read.id, "0")] || !read.parent[strspn(read.parent, "0")])
        return false; /* an id of zeros means no id */
    snprintf(read.span, sizeof read.span, "%016llx", (unsigned long long)(random | 1));
    read.flags = (uint8_t)strtoul(flags, NULL, 16);
    *trace = read;
    return true;
}

void trace_make(struct trace *trace, const uint64_t random[static 3], bool sampled)
{
    *trace = (struct trace){.flags = sampled ? TRACE_SAMPLED : 0};
    snprintf(trace->id, sizeof trace->id, "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)(random[1] | 1));
    snprintf(trace->span, sizeof trace->span, "%016llx", (unsigned long long)(random[2] | 1));
}

const char *trace_text(const struct trace *trace, char text[static TRACEPARENT_TEXT])
{
    snprintf(text, TRACEPARENT_TEXT, "00-%s-%s-%02x", trace->id, trace->span, trace->flags);
    return text;
}
