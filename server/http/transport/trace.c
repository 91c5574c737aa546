/* Parses traceparent and creates the one in the answer. */
#include "server/http/transport/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS "0123456789abcdef" /* capitals are not allowed */

/* The offsets of the parts of "00-<32>-<16>-<2>". */
#define VERSION_AT 0
#define TRACE_AT   3
#define SPAN_AT    36
#define FLAGS_AT   53
#define LENGTH     55

static bool is_id(const char *text, size_t length)
{
    return strspn(text, DIGITS) == length && strspn(text, "0") < length;
}

static bool is_traceparent(const char *text)
{
    size_t length = text ? strlen(text) : 0;
    if (length < LENGTH || strspn(text, DIGITS) != 2 || text[2] != '-' || !strncmp(text, "ff", 2))
        return false;
    /* Version 00 ends after the flags; a later version may have more. */
    if (length > LENGTH && (!strncmp(text, "00", 2) || text[LENGTH] != '-'))
        return false;
    return is_id(text + TRACE_AT, 32) && text[SPAN_AT - 1] == '-' && is_id(text + SPAN_AT, 16) &&
           text[FLAGS_AT - 1] == '-' && strspn(text + FLAGS_AT, DIGITS) == 2;
}

bool trace_begin(struct trace *trace, const char *traceparent, uint64_t random)
{
    *trace = (struct trace){.flags = 0};
    if (!is_traceparent(traceparent))
        return false;
    memcpy(trace->id, traceparent + TRACE_AT, sizeof trace->id - 1);
    memcpy(trace->parent, traceparent + SPAN_AT, sizeof trace->parent - 1);
    /* An id of zeros would mean no id. */
    snprintf(trace->span, sizeof trace->span, "%016llx", (unsigned long long)(random | 1));
    trace->flags =
        (uint8_t)strtoul((char[]){traceparent[FLAGS_AT], traceparent[FLAGS_AT + 1], 0}, NULL, 16);
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
