/* The log's thread: no caller waits for the reader of standard error, the order of lines is kept,
 * and lines that do not fit are counted and told of. A plain program, so that it also runs under
 * ThreadSanitizer. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/observe/log.h"
#include "tests/unit/tap.h"

static int kept_stderr;

/* Standard error becomes a pipe; returns the end to read from. */
static int redirect(int flags)
{
    int ends[2];
    CHECK(!pipe(ends) && !fcntl(ends[1], F_SETFL, flags));
    CHECK(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO && !close(ends[1]));
    return ends[0];
}

static void restore(void)
{
    log_flush();
    CHECK(dup2(kept_stderr, STDERR_FILENO) == STDERR_FILENO);
}

/* ---- what a reader sees ---- */

enum { WRITERS = 4, LINES = 2000 };

struct reader {
    FILE *file;
    long next[WRITERS]; /* the number that a writer's next line must at least have */
    long lines, told;   /* lines read; lines that are said to be lost */
};

static struct reader reader_open(int fd)
{
    struct reader reader = {.file = fdopen(fd, "r")};
    CHECK(reader.file);
    return reader;
}

static long number_behind(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    CHECK(at);
    return strtol(at + strlen(key), NULL, 10);
}

/* Reads a line, and checks that it is whole and in its order; false for the line `last`. */
static bool read_line(struct reader *reader)
{
    char line[LOG_LINE_MAX + 1];
    CHECK(fgets(line, sizeof line, reader->file) && strchr(line, '\n'));
    if (strstr(line, " info  last\n"))
        return false;
    if (strstr(line, " warn  log lines lost lines=")) {
        reader->told += number_behind(line, " lines=");
        return true;
    }
    const long from = number_behind(line, " info  line from="), number = number_behind(line, " n=");
    CHECK(from >= 0 && from < WRITERS && number >= reader->next[from]);
    CHECK(!strcmp(strstr(line, " end="), " end=yes\n"));
    reader->next[from] = number + 1;
    reader->lines++;
    return true;
}

static void write_numbered(long from, long number)
{
    log_event(LOG_INFO, "line", LOG_INT("from", from), LOG_INT("n", number), LOG_STR("end", "yes"));
}

/* ---- tests ---- */

static void *write_many(void *from)
{
    for (long i = 0; i < LINES; i++)
        write_numbered(*(const long *)from, i);
    return NULL;
}

/* Read at once, however slowly: what is not there is told of. */
static void test_lines_of_several_threads_do_not_mix(void)
{
    struct reader reader = reader_open(redirect(0));
    const unsigned long lost = log_lost_total();
    long from[WRITERS] = {0, 1, 2, 3};
    pthread_t writers[WRITERS];
    for (size_t i = 0; i < WRITERS; i++)
        CHECK(!pthread_create(&writers[i], NULL, write_many, &from[i]));
    while (reader.lines + reader.told < (long)WRITERS * LINES)
        CHECK(read_line(&reader));
    for (size_t i = 0; i < WRITERS; i++)
        CHECK(!pthread_join(writers[i], NULL));
    CHECK((unsigned long)reader.told == log_lost_total() - lost);
    restore();
    fclose(reader.file);
}

/* Nobody reads until lines are lost; this test hangs if a caller waits for the pipe. */
static void stall(int flags)
{
    struct reader reader = reader_open(redirect(flags));
    const unsigned long lost = log_lost_total();
    long written = 0;
    while (log_lost_total() < lost + 100)
        write_numbered(0, written++);
    log_flush(); /* gives up */
    /* The log may lose lines, and tell of them, twice. */
    while (reader.lines + reader.told < written) {
        CHECK(read_line(&reader));
        CHECK(reader.told > 0 || reader.next[0] == reader.lines); /* the first lines are kept */
    }
    CHECK((unsigned long)reader.told == log_lost_total() - lost);
    log_event(LOG_INFO, "last");
    CHECK(!read_line(&reader));
    restore();
    fclose(reader.file);
}

static void test_a_reader_that_stalls(void)
{
    stall(0);
}

static void test_a_reader_that_stalls_behind_a_nonblocking_pipe(void)
{
    stall(O_NONBLOCK);
}

static void test_a_reader_that_is_gone(void)
{
    const unsigned long lost = log_lost_total();
    CHECK(!close(redirect(0)));
    for (long i = 0; i < 10; i++)
        write_numbered(0, i);
    log_flush();
    CHECK(log_lost_total() == lost + 10);
    restore();
    struct reader reader = reader_open(redirect(0));
    write_numbered(0, 10);
    CHECK(read_line(&reader) && reader.lines == 1 && read_line(&reader) && reader.told == 10);
    restore();
    fclose(reader.file);
}

/* The start message is the last thing that is written; this test hangs if nobody hears of its loss
 * before the next line. */
static void test_standard_output_that_is_full(void)
{
    struct reader reader = reader_open(redirect(0));
    const int kept_stdout = dup(STDOUT_FILENO);
    char page[4096] = {0};
    int ends[2];
    CHECK(kept_stdout >= 0 && !pipe2(ends, O_NONBLOCK));
    while (write(ends[1], page, sizeof page) > 0)
        continue;
    fflush(stdout);
    CHECK(dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO);
    write_numbered(0, 0);
    log_banner("the start message\n");
    CHECK(read_line(&reader) && reader.lines == 1 && read_line(&reader) && reader.told == 1);
    CHECK(dup2(kept_stdout, STDOUT_FILENO) == STDOUT_FILENO && !close(kept_stdout));
    CHECK(!close(ends[0]) && !close(ends[1]));
    restore();
    fclose(reader.file);
}

/* ---- a slow reader at the end of the process ---- */

enum { PAGE = 4096, SLOW_LINES = 256 };

struct slow_reader {
    int fd;
    long lines;
};

static void *read_slowly(void *argument)
{
    struct slow_reader *reader = argument;
    char page[PAGE];
    for (ssize_t n; (n = read(reader->fd, page, sizeof page)) > 0; usleep(200000))
        for (ssize_t i = 0; i < n; i++)
            reader->lines += page[i] == '\n';
    return NULL;
}

/* Whether log_flush() waited for more than a second, until the reader had all lines. */
static bool flush_slowly(void)
{
    struct slow_reader reader = {.fd = redirect(0)};
    pthread_t thread;
    CHECK(fcntl(reader.fd, F_SETPIPE_SZ, PAGE) == PAGE);
    for (long i = 0; i < SLOW_LINES; i++) /* about ten pages */
        log_event(LOG_INFO, "slow", LOG_INT("number", i),
                  LOG_STR("text", "one of the lines that this reader takes seconds to read, each "
                                  "long enough that the pipe is soon full"));
    CHECK(!pthread_create(&thread, NULL, read_slowly, &reader));
    const int64_t start = clock_now();
    log_flush();
    const double waited = clock_ms(clock_now() - start);
    CHECK(dup2(kept_stderr, STDERR_FILENO) == STDERR_FILENO); /* what is left is written there */
    log_flush();
    CHECK(!pthread_join(thread, NULL) && !close(reader.fd));
    return reader.lines == SLOW_LINES && waited > 1200;
}

/* A busy machine may stop the reader for a second; then there is another try. */
static void test_a_slow_reader_is_waited_for(void)
{
    bool is_complete = false;
    for (int i = 0; i < 20 && !is_complete; i++)
        is_complete = flush_slowly();
    CHECK(is_complete);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"lines of several threads do not mix", test_lines_of_several_threads_do_not_mix},
        {"a reader that stalls", test_a_reader_that_stalls},
        {"a reader that stalls behind a non-blocking pipe",
         test_a_reader_that_stalls_behind_a_nonblocking_pipe},
        {"a reader that is gone", test_a_reader_that_is_gone},
        {"standard output that is full", test_standard_output_that_is_full},
        {"a slow reader is waited for", test_a_slow_reader_is_waited_for},
    };
    signal(SIGPIPE, SIG_IGN);
    kept_stderr = dup(STDERR_FILENO);
    CHECK(kept_stderr >= 0 && log_start());
    return tap_run(tests, COUNT_OF(tests), NULL);
}
