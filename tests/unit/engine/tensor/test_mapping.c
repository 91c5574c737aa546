/* Weights in mapped files: a file that shrinks or changes is an error and not a signal, and a
 * session that was made does not care about the file any more. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "engine/tensor/tensor_file.h"
#include "tests/unit/random_build.h"

enum { PAGE = 4096, PAGES = 600, FILE_BYTES = PAGE * PAGES };

/* A file of `bytes` whose byte i is i * 7 % 251; its name is gone already. */
static int make_file(size_t bytes)
{
    char path[] = "/tmp/lensd_test_mapping_XXXXXX";
    int fd = mkstemp(path);
    unsigned char *data = malloc(bytes);
    cr_assert(fd >= 0 && data);
    unlink(path);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 7 % 251);
    cr_assert_eq(write(fd, data, bytes), (ssize_t)bytes);
    free(data);
    return fd;
}

static void holds(const struct mapping *mapping, size_t offset, size_t from, size_t to)
{
    const unsigned char *data = mapping_data(mapping);
    for (size_t i = from; i < to; i++)
        cr_assert_eq(data[i], (offset + i) * 7 % 251, "byte %zu", i);
}

Test(mapping, reads_from_any_offset)
{
    static const size_t offsets[] = {0, 1, 4095, 4096, 5000};
    int fd = make_file(3 * PAGE);
    for (size_t i = 0; i < COUNT_OF(offsets); i++) {
        struct mapping *mapping;
        struct error err = {0};
        size_t bytes = 3 * PAGE - offsets[i];
        cr_assert_eq(mapping_create(fd, offsets[i], bytes, &mapping, &err), STATUS_OK, "%s",
                     err.message);
        holds(mapping, offsets[i], 0, bytes);
        mapping_let_go(mapping);
        holds(mapping, offsets[i], 0, bytes);
        cr_expect_not(mapping_torn(mapping));
        mapping_free(mapping);
    }
    close(fd);
}

Test(mapping, lost_pages_read_as_zeros)
{
    int fd = make_file(FILE_BYTES);
    struct mapping *mapping, *other;
    struct error err = {0};
    cr_assert_eq(mapping_create(fd, 10, FILE_BYTES - 10, &mapping, &err), STATUS_OK);
    cr_assert_eq(mapping_create(fd, 0, PAGE, &other, &err), STATUS_OK);
    cr_assert_eq(ftruncate(fd, 2 * PAGE), 0);
    holds(mapping, 10, 0, 2 * PAGE - 10);
    cr_expect_not(mapping_torn(mapping), "nothing that is lost has been read yet");
    const unsigned char *data = mapping_data(mapping);
    cr_expect_eq(data[2 * PAGE], 0);
    cr_expect_eq(data[FILE_BYTES - 11], 0);
    cr_expect(mapping_torn(mapping));
    cr_expect_not(mapping_torn(other));
    cr_expect_eq(mapping_settle(mapping, &err), STATUS_IO);
    cr_expect(strstr(err.message, "changed"), "%s", err.message);
    cr_expect_eq(mapping_settle(other, &err), STATUS_IO, "the file is another one now");
    mapping_free(mapping);
    mapping_free(other);
    close(fd);
}

Test(mapping, settled_bytes_are_our_own)
{
    int fd = make_file(FILE_BYTES);
    struct mapping *mapping;
    struct error err = {0};
    cr_assert_eq(mapping_create(fd, 100, FILE_BYTES - 100, &mapping, &err), STATUS_OK);
    void *before = mapping_data(mapping);
    cr_assert_eq(mapping_settle(mapping, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(ftruncate(fd, 0), 0);
    cr_expect_eq(mapping_data(mapping), before);
    mapping_let_go(mapping);
    holds(mapping, 100, 0, FILE_BYTES - 100);
    cr_expect_eq(mapping_settle(mapping, &err), STATUS_OK);
    cr_expect_not(mapping_torn(mapping));
    mapping_free(mapping);
    /* The file shrinks before it is settled, and nobody has noticed. */
    cr_assert_eq(ftruncate(fd, FILE_BYTES), 0);
    cr_assert_eq(mapping_create(fd, 0, FILE_BYTES, &mapping, &err), STATUS_OK);
    cr_assert_eq(ftruncate(fd, FILE_BYTES / 2), 0);
    cr_expect_eq(mapping_settle(mapping, &err), STATUS_IO);
    mapping_free(mapping);
    close(fd);
}

Test(mapping, their_number_is_bounded)
{
    enum { MOST = 4096 };
    static struct mapping *mappings[MOST];
    int fd = make_file(PAGE);
    struct mapping *one_more;
    struct error err = {0};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < MOST; i++)
            cr_assert_eq(mapping_create(fd, 0, PAGE, &mappings[i], &err), STATUS_OK, "%zu: %s", i,
                         err.message);
        cr_expect_eq(mapping_create(fd, 0, PAGE, &one_more, &err), STATUS_NO_MEMORY);
        for (size_t i = 0; i < MOST; i++)
            mapping_free(mappings[i]);
    }
    cr_expect_neq(mapping_create(-1, 0, PAGE, &one_more, &err), STATUS_OK);
    close(fd);
}

/* A fault that is not ours ends the process as it always did. */
Test(mapping, other_faults_stay_fatal)
{
    int fd = make_file(PAGE);
    struct mapping *mapping;
    struct error err = {0};
    cr_assert_eq(mapping_create(fd, 0, PAGE, &mapping, &err), STATUS_OK);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, SIG_DFL); /* the test runner's and the sanitizers' handlers are not tested */
        struct mapping *again;
        volatile const char *bare = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
        if (ftruncate(fd, 0) || mapping_create(fd, 0, PAGE, &again, NULL) != STATUS_OK)
            _exit(1);
        _exit(bare[0] ? 2 : 3);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "status %x", (unsigned)status);
    mapping_free(mapping);
    close(fd);
}

/* ---- sessions ---- */

enum { WIDTH = 512 };

/* y = (x + c) w: w is packed, c is read in place. Both lie in the file, c off any alignment. */
static void build(struct builder *b, int fd)
{
    struct error err = {0};
    struct tensor *w, *c;
    struct shape square = SHAPE(WIDTH, WIDTH), rows = SHAPE(64, WIDTH);
    *b = (struct builder){.graph = graph_create(NULL), .state = 3};
    b->graph->opset = 13;
    b->graph->inputs = arena_alloc(b->graph->arena, 1, sizeof(struct value *));
    b->graph->outputs = arena_alloc(b->graph->arena, 1, sizeof(struct value *));
    struct value *x = graph_add_value(b->graph, "x", DTYPE_F32, &rows);
    b->graph->inputs[b->graph->input_count++] = x;
    cr_assert_eq(tensor_from_file(fd, 0, DTYPE_F32, &square, &w, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_eq(tensor_from_file(fd, WIDTH * WIDTH * 4 + 4, DTYPE_F32, &rows, &c, &err),
                 STATUS_OK);
    struct value *sum = binary(b, OP_ADD, x, graph_add_constant(b->graph, "c", c));
    b->graph->outputs[b->graph->output_count++] =
        binary(b, OP_MATMUL, sum, graph_add_constant(b->graph, "w", w));
    tensor_unref(w);
    tensor_unref(c);
}

static int numbers_file(void)
{
    enum { COUNT = WIDTH * WIDTH + 64 * WIDTH + 1 };
    char path[] = "/tmp/lensd_test_mapping_XXXXXX";
    int fd = mkstemp(path);
    float *data = malloc(COUNT * sizeof *data);
    uint32_t state = 8;
    unlink(path);
    for (size_t i = 0; i < COUNT; i++)
        data[i] = random_unit(&state);
    cr_assert_eq(write(fd, data, COUNT * sizeof *data), (ssize_t)(COUNT * sizeof *data));
    free(data);
    return fd;
}

Test(mapping, sessions_do_not_need_the_file)
{
    struct error err = {0};
    struct builder b;
    struct session *session;
    struct session_options options = {.max_batch = 1, .threads = 1, .image_input = SIZE_MAX};
    int fd = numbers_file();
    build(&b, fd);
    cr_assert_not_null(tensor_mapping(b.graph->nodes[0]->inputs[1]->known));
    cr_assert_eq(session_create(b.graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    float *x = calloc((size_t)64 * WIDTH, sizeof *x), first[WIDTH];
    const void *inputs[] = {x};
    const struct tensor *y;
    cr_assert_eq(session_run(session, 1, inputs, &y, &err), STATUS_OK);
    memcpy(first, (const float *)y->data + 5 * WIDTH, sizeof first);
    double sum = 0;
    cr_assert_eq(ftruncate(fd, 0), 0);
    cr_assert_eq(session_run(session, 1, inputs, &y, &err), STATUS_OK);
    cr_expect_arr_eq((const float *)y->data + 5 * WIDTH, first, sizeof first);
    for (size_t i = 0; i < WIDTH; i++)
        sum += fabs((double)first[i]);
    cr_expect_gt(sum, 1.0, "the weights were there when they were packed");
    session_free(session);
    graph_free(b.graph);
    free(x);
    close(fd);
}

/* Overwritten in place: the weights could be those of two files. */
Test(mapping, sessions_refuse_a_file_that_changes)
{
    static const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct error err = {0};
    struct builder b;
    struct session *session = NULL;
    struct session_options options = {.max_batch = 2, .threads = 1, .image_input = SIZE_MAX};
    int fd = numbers_file();
    cr_assert_eq(futimens(fd, long_ago), 0);
    build(&b, fd);
    cr_assert_eq(pwrite(fd, "1234", 4, PAGE), 4);
    cr_assert_eq(session_create(b.graph, &options, &session, &err), STATUS_IO, "%s", err.message);
    cr_expect(strstr(err.message, "the weights") && strstr(err.message, "changed"), "%s",
              err.message);
    graph_free(b.graph);
    close(fd);
}

Test(mapping, sessions_refuse_a_file_that_shrinks)
{
    for (off_t left = 0; left <= WIDTH * WIDTH * 4; left += WIDTH * WIDTH * 4) {
        struct error err = {0};
        struct builder b;
        struct session *session = NULL;
        struct session_options options = {.max_batch = 2, .threads = 1, .image_input = SIZE_MAX};
        int fd = numbers_file();
        build(&b, fd);
        cr_assert_eq(ftruncate(fd, left), 0);
        cr_assert_eq(session_create(b.graph, &options, &session, &err), STATUS_IO, "%s",
                     err.message);
        cr_expect(strstr(err.message, "the weights") && strstr(err.message, "changed"), "%s",
                  err.message);
        graph_free(b.graph);
        close(fd);
    }
}
