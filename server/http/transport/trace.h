/* W3C Trace Context (level 1): the traceparent header, from the client or created here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define TRACE_ID_TEXT 33 /* 32 hexadecimal digits and the terminator */
#define SPAN_ID_TEXT  17

struct trace {
    char id[TRACE_ID_TEXT];    /* "": none */
    char parent[SPAN_ID_TEXT]; /* the client's span; "": the trace begins here */
    char span[SPAN_ID_TEXT];   /* ours, for this request */
    uint8_t flags;
};

/* Reads "00-TRACE-SPAN-FLAGS" and gives this request a new span, derived from `random`. Returns
 * false and no trace if the header is absent or malformed; such headers must be ignored (section
 * 3.2.2.5). Of later versions it reads only the known part. */
bool trace_begin(struct trace *trace, const char *traceparent, uint64_t random);

/* Starts a trace with an id derived from `random`. `sampled` sets the flag that asks other services
 * to record it, too. */
void trace_make(struct trace *trace, const uint64_t random[static 3], bool sampled);

#define TRACE_SAMPLED 1 /* a bit of trace->flags */

/* Formats "00-TRACE-SPAN-FLAGS" with our span, for the answer; returns `text`. */
#define TRACEPARENT_TEXT 56
const char *trace_text(const struct trace *trace, char text[static TRACEPARENT_TEXT]);
