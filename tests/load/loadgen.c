/* loadgen: HTTP load from one thread, open loop or closed loop; tests/load/loadtest runs it.
 *
 * Open loop (--rate): requests arrive at the times of a Poisson process that is drawn beforehand,
 * or, with --even, at equal distances, which shows what of a server's tail is not the chance of
 * arrivals. Latency counts from the time a request was meant to be sent: what waits because all
 * connections are busy, or because this program was late, has waited. A server that stalls is seen
 * with the whole stall, where a closed loop would only stop asking.
 *
 * Closed loop (--concurrency): that many connections, each sending its next request when the last
 * one was answered.
 *
 * Standard output has lines of JSON: {"progress": …} while it runs, at the end {"result": …}.
 * Everything is bounded: by --seconds, --requests, and --timeout for what is still under way. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/load/histogram.h"
#include "tests/load/transfers.h"

#define SECOND       ((int64_t)1000000)
#define STATUSES     600
#define REQUESTS_MAX 20000000

struct options {
    const char *url, *manifest, *source;
    double rate; /* 0: closed loop */
    double seconds, warmup, timeout, interval;
    long concurrency, requests, connections, seed;
    bool insecure, even;
    struct curl_slist *headers;
};

struct run {
    const struct options *options;
    struct requests requests;
    struct transfers *transfers;
    uint64_t random;
    int64_t begin, from, until; /* us: started, counting from, last arrival before */
    int64_t *arrivals;          /* open loop: us after begin, ascending */
    size_t arrival_count, next; /* next: the first that is not sent */
    size_t due;                 /* the first whose time has not come */

    /* Of the requests that count (meant to be sent at or after `from`): */
    struct histogram latency, service, refused, lag; /* 2xx from intent, 2xx from start, the rest */
    uint64_t sent, answered, good, timeouts, connect_errors, broken, abandoned;
    uint64_t good_ended; /* good answers that ended between `from` and `until`, whenever they were
                          * asked for */
    uint64_t statuses[STATUSES];
    uint64_t sent_bytes, received_bytes, connections;
    int64_t first, last_good; /* us: first intent, last good answer */
    int most_running;
    size_t most_waiting;

    struct histogram recent; /* since the last progress line */
    uint64_t recent_good, recent_bad;
};

/* ---- random numbers: splitmix64, so that a seed gives the same load everywhere ---- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* In (0, 1]. */
static double next_uniform(uint64_t *state)
{
    return ((double)(next_random(state) >> 11) + 1) / 9007199254740992.0;
}

static const struct request_body *next_body(struct run *run)
{
    return &run->requests.bodies[next_random(&run->random) % run->requests.count];
}

/* ---- recording ---- */

static void record_error(struct run *run, CURLcode code)
{
    if (code == CURLE_OPERATION_TIMEDOUT)
        run->timeouts++;
    else if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
        run->connect_errors++;
    else
        run->broken++;
}

static void record(struct run *run, int64_t intended, const struct outcome *outcome)
{
    bool good = outcome->code == CURLE_OK && outcome->status >= 200 && outcome->status < 300;
    histogram_add(&run->recent, outcome->ended - intended);
    if (good)
        run->recent_good++;
    else
        run->recent_bad++;
    if (good && outcome->ended >= run->from && outcome->ended < run->until)
        run->good_ended++;
    if (intended < run->from)
        return;
    run->received_bytes += outcome->received;
    run->connections += (uint64_t)outcome->connections;
    if (outcome->code != CURLE_OK) {
        record_error(run, outcome->code);
        return;
    }
    run->answered++;
    run->statuses[outcome->status >= 0 && outcome->status < STATUSES ? outcome->status : 0]++;
    if (!good) {
        histogram_add(&run->refused, outcome->ended - outcome->started);
        return;
    }
    run->good++;
    histogram_add(&run->latency, outcome->ended - intended);
    histogram_add(&run->service, outcome->ended - outcome->started);
    if (outcome->ended > run->last_good)
        run->last_good = outcome->ended;
}

static void note_start(struct run *run, int64_t intended, const struct request_body *body)
{
    if (transfers_running(run->transfers) > run->most_running)
        run->most_running = transfers_running(run->transfers);
    if (intended < run->from)
        return;
    if (run->sent == 0)
        run->first = intended;
    run->sent++;
    run->sent_bytes += body->size;
}

static void print_progress(struct run *run)
{
    printf("{\"progress\":{\"seconds\":%.2f,\"good\":%" PRIu64 ",\"bad\":%" PRIu64
           ",\"running\":%d,\"p50_us\":%" PRId64 ",\"p99_us\":%" PRId64 "}}\n",
           (double)(now_us() - run->begin) / 1e6, run->recent_good, run->recent_bad,
           transfers_running(run->transfers), histogram_quantile(&run->recent, 0.5),
           histogram_quantile(&run->recent, 0.99));
    fflush(stdout);
    histogram_clear(&run->recent);
    run->recent_good = run->recent_bad = 0;
}

/* ---- open loop ---- */

static bool draw_arrivals(struct run *run)
{
    const struct options *options = run->options;
    double total = options->warmup + options->seconds, at = 0;
    size_t room = (size_t)options->requests;
    double likely = options->rate * total;
    likely += 10 * sqrt(likely) + 16;
    if (likely < (double)room)
        room = (size_t)likely;
    run->arrivals = calloc(room, sizeof *run->arrivals);
    if (!run->arrivals) {
        fprintf(stderr, "loadgen: out of memory for %zu arrivals\n", room);
        return false;
    }
    uint64_t random = (uint64_t)options->seed ^ UINT64_C(0xA5A5A5A5A5A5A5A5);
    while (run->arrival_count < room) {
        at += (options->even ? 1 : -log(next_uniform(&random))) / options->rate;
        if (at >= total)
            break;
        run->arrivals[run->arrival_count++] = (int64_t)(at * 1e6);
    }
    return true;
}

/* Sends what is due, as far as there are connections; gives up what has waited beyond the timeout.
 */
static void send_due(struct run *run)
{
    int64_t now = now_us(), timeout = (int64_t)(run->options->timeout * 1e6);
    while (run->next < run->arrival_count && run->begin + run->arrivals[run->next] <= now) {
        int64_t intended = run->begin + run->arrivals[run->next];
        if (now - intended > timeout) {
            run->abandoned += intended >= run->from;
            run->recent_bad++;
            run->next++;
            continue;
        }
        const struct request_body *body = next_body(run);
        if (!transfers_start(run->transfers, body, intended))
            break;
        run->next++;
        note_start(run, intended, body);
        if (intended >= run->from)
            histogram_add(&run->lag, now_us() - intended);
    }
    while (run->due < run->arrival_count && run->begin + run->arrivals[run->due] <= now)
        run->due++;
    if (run->due > run->next && run->due - run->next > run->most_waiting)
        run->most_waiting = run->due - run->next;
}

static void on_open_done(void *context, const struct outcome *outcome)
{
    struct run *run = context;
    record(run, outcome->tag, outcome);
    send_due(run);
}

static bool run_open(struct run *run)
{
    int64_t tick = (int64_t)(run->options->interval * 1e6), next_tick = run->begin + tick;
    /* What was sent last may take the timeout; what waited for a connection as long again. */
    int64_t hard = run->until + (int64_t)(2.2 * run->options->timeout * 1e6) + SECOND;
    while (run->next < run->arrival_count || transfers_running(run->transfers) > 0) {
        send_due(run);
        int64_t now = now_us(), wake = next_tick;
        if (now > hard)
            break;
        bool waiting =
            run->next < run->arrival_count && run->begin + run->arrivals[run->next] <= now;
        if (run->next < run->arrival_count && !waiting &&
            run->begin + run->arrivals[run->next] < wake)
            wake = run->begin + run->arrivals[run->next];
        if (!transfers_wait(run->transfers, wake, on_open_done, run))
            return false;
        if (now_us() >= next_tick) {
            print_progress(run);
            next_tick = now_us() + tick;
        }
    }
    run->timeouts += (uint64_t)transfers_running(run->transfers);
    return true;
}

/* ---- closed loop ---- */

static void send_next(struct run *run)
{
    int64_t now = now_us();
    if (now >= run->until || run->next >= (size_t)run->options->requests)
        return;
    const struct request_body *body = next_body(run);
    if (transfers_start(run->transfers, body, now)) {
        run->next++;
        note_start(run, now, body);
    }
}

static void on_closed_done(void *context, const struct outcome *outcome)
{
    struct run *run = context;
    record(run, outcome->tag, outcome);
    send_next(run);
}

static bool run_closed(struct run *run)
{
    int64_t tick = (int64_t)(run->options->interval * 1e6), next_tick = run->begin + tick;
    for (long i = 0; i < run->options->concurrency; i++)
        send_next(run);
    while (transfers_running(run->transfers) > 0) {
        if (!transfers_wait(run->transfers, next_tick, on_closed_done, run))
            return false;
        if (now_us() >= next_tick) {
            print_progress(run);
            next_tick = now_us() + tick;
        }
    }
    return true;
}

/* ---- the result ---- */

static void print_histogram(const char *name, const struct histogram *h)
{
    printf(",\"%s\":{\"count\":%" PRIu64 ",\"max_us\":%" PRId64 ",\"buckets\":", name, h->total,
           h->greatest);
    histogram_write_json(h, stdout);
    printf("}");
}

static void print_result(const struct run *run)
{
    const char *comma = "";
    double window = run->last_good > run->first ? (double)(run->last_good - run->first) / 1e6 : 0;
    /* An answer that came quickly after the last request does not make the window shorter. */
    if (window < run->options->seconds &&
        (run->options->rate > 0 || run->next < (size_t)run->options->requests))
        window = run->options->seconds;
    printf("{\"result\":{\"seconds\":%.6f,\"sent\":%" PRIu64 ",\"answered\":%" PRIu64
           ",\"good\":%" PRIu64 ",\"goodput\":%.3f,\"statuses\":{",
           window, run->sent, run->answered, run->good,
           (double)run->good_ended / run->options->seconds);
    for (int i = 0; i < STATUSES; i++) {
        if (run->statuses[i] == 0)
            continue;
        printf("%s\"%d\":%" PRIu64, comma, i, run->statuses[i]);
        comma = ",";
    }
    printf("},\"errors\":{\"timeout\":%" PRIu64 ",\"connect\":%" PRIu64 ",\"broken\":%" PRIu64
           ",\"given_up\":%" PRIu64 "},\"sent_bytes\":%" PRIu64 ",\"received_bytes\":%" PRIu64
           ",\"connections\":%" PRIu64 ",\"most_running\":%d,\"most_waiting\":%zu",
           run->timeouts, run->connect_errors, run->broken, run->abandoned, run->sent_bytes,
           run->received_bytes, run->connections, run->most_running, run->most_waiting);
    print_histogram("latency", &run->latency);
    print_histogram("service", &run->service);
    print_histogram("refused", &run->refused);
    print_histogram("lag", &run->lag);
    printf("}}\n");
    fflush(stdout);
}

static bool run_load(struct run *run)
{
    const struct options *options = run->options;
    bool open = options->rate > 0;
    struct transfers_options transfers = {
        .url = options->url,
        .slots = (int)(open ? options->connections : options->concurrency),
        .timeout_us = (int64_t)(options->timeout * 1e6),
        .insecure = options->insecure,
        .source = options->source,
    };
    run->random = (uint64_t)options->seed;
    run->transfers = transfers_create(&transfers);
    if (!run->transfers || (open && !draw_arrivals(run)))
        return false;
    run->begin = now_us();
    run->from = run->begin + (int64_t)(options->warmup * 1e6);
    run->until = run->from + (int64_t)(options->seconds * 1e6);
    if (!(open ? run_open(run) : run_closed(run)))
        return false;
    print_result(run);
    return true;
}

/* ---- options ---- */

static void usage(FILE *out)
{
    fprintf(out, "usage: loadgen --url URL --manifest FILE (--rate R | --concurrency N) [options]\n"
                 "  --rate R           open loop: R requests/s on average, Poisson arrivals\n"
                 "  --even             arrivals at equal distances instead\n"
                 "  --concurrency N    closed loop: N connections\n"
                 "  --seconds S        how long requests count (5)\n"
                 "  --warmup S         before that, requests that do not count (1)\n"
                 "  --requests N       at most this many altogether (1000000)\n"
                 "  --connections N    open loop: at most this many under way (256)\n"
                 "  --timeout S        of a request (10)\n"
                 "  --from ADDRESS     of this machine, to connect from\n"
                 "  --header TEXT      for every request; may be repeated\n"
                 "  --seed N           of arrivals and of which body is sent (1)\n"
                 "  --interval S       between progress lines (0.5)\n"
                 "  --insecure         take any certificate\n");
}

/* A whole number or a decimal one from `low` to `high`; exits with a sentence otherwise. */
static double read_number(const char *name, const char *text, double low, double high, bool whole)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno != 0 || end == text || *end || !(value >= low && value <= high) ||
        (whole && value != floor(value))) {
        fprintf(stderr, "loadgen: --%s takes a %snumber from %g to %g, not '%s'\n", name,
                whole ? "whole " : "", low, high, text);
        exit(2);
    }
    return value;
}

enum { RATE = 256, CONCURRENCY, SECONDS, WARMUP, REQUESTS, CONNECTIONS, TIMEOUT, SEED, INTERVAL };

static const struct {
    const char *name;
    int id;
    double low, high;
    bool whole;
} numbers[] = {
    {"rate", RATE, 0.01, 1e6, false},
    {"concurrency", CONCURRENCY, 1, 10000, true},
    {"seconds", SECONDS, 0.05, 86400, false},
    {"warmup", WARMUP, 0, 3600, false},
    {"requests", REQUESTS, 1, REQUESTS_MAX, true},
    {"connections", CONNECTIONS, 1, 10000, true},
    {"timeout", TIMEOUT, 0.01, 3600, false},
    {"seed", SEED, 0, 2147483647, true},
    {"interval", INTERVAL, 0.05, 3600, false},
};

static void set_number(struct options *options, int id, double value)
{
    switch (id) {
    case RATE:
        options->rate = value;
        break;
    case CONCURRENCY:
        options->concurrency = (long)value;
        break;
    case SECONDS:
        options->seconds = value;
        break;
    case WARMUP:
        options->warmup = value;
        break;
    case REQUESTS:
        options->requests = (long)value;
        break;
    case CONNECTIONS:
        options->connections = (long)value;
        break;
    case TIMEOUT:
        options->timeout = value;
        break;
    case SEED:
        options->seed = (long)value;
        break;
    default:
        options->interval = value;
    }
}

static void read_options(int argc, char **argv, struct options *options)
{
    struct option long_options[18] = {
        {"url", required_argument, NULL, 'u'},    {"manifest", required_argument, NULL, 'm'},
        {"header", required_argument, NULL, 'H'}, {"insecure", no_argument, NULL, 'k'},
        {"help", no_argument, NULL, 'h'},         {"even", no_argument, NULL, 'e'},
        {"from", required_argument, NULL, 'f'},
    };
    const size_t texts = 7, count = sizeof numbers / sizeof *numbers;
    for (size_t i = 0; i < count; i++)
        long_options[texts + i] =
            (struct option){numbers[i].name, required_argument, NULL, numbers[i].id};
    int id;
    while ((id = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (id == 'u')
            options->url = optarg;
        else if (id == 'm')
            options->manifest = optarg;
        else if (id == 'f')
            options->source = optarg;
        else if (id == 'k')
            options->insecure = true;
        else if (id == 'e')
            options->even = true;
        else if (id == 'H') {
            struct curl_slist *longer = curl_slist_append(options->headers, optarg);
            options->headers = longer ? longer : options->headers;
        } else if (id == 'h') {
            usage(stdout);
            exit(0);
        } else if (id >= RATE) {
            size_t i = (size_t)(id - RATE);
            set_number(options, id,
                       read_number(numbers[i].name, optarg, numbers[i].low, numbers[i].high,
                                   numbers[i].whole));
        } else {
            usage(stderr);
            exit(2);
        }
    }
    if (!options->url || !options->manifest || optind != argc ||
        (options->rate > 0) == (options->concurrency > 0)) {
        usage(stderr);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct options options = {.seconds = 5,
                              .warmup = 1,
                              .timeout = 10,
                              .interval = 0.5,
                              .requests = 1000000,
                              .connections = 256,
                              .seed = 1};
    struct run *run = calloc(1, sizeof *run);
    int result = 1;
    read_options(argc, argv, &options);
    if (!run || curl_global_init(CURL_GLOBAL_DEFAULT) != 0) {
        fprintf(stderr, "loadgen: out of memory\n");
        free(run);
        return 1;
    }
    run->options = &options;
    if (requests_load(options.manifest, options.headers, &run->requests) && run_load(run))
        result = 0;
    transfers_free(run->transfers);
    requests_free(&run->requests);
    curl_slist_free_all(options.headers);
    free(run->arrivals);
    free(run);
    curl_global_cleanup();
    return result;
}
