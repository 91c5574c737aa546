/* lensd_conformance: runs case folders through the reference interpreter and says which agree.
 *
 *     lensd_conformance DIR... [--filter TEXT] [--op OP] [--manifest FILE] [--list]
 *                              [--baseline FILE] [--session] [--cuda] [--after CASE] [-v]
 *
 * --session runs them as the server does, through a compiled session, instead; --cuda also on the
 * first GPU. --after goes on behind a case that ended an earlier process.
 *
 * Any folder in ONNX's layout works (cases.h); "shared:X" is X in the folder of test data beside
 * the repository. Prints a line for every case that does not pass, with the reason, and `N passed,
 * N failed, N unsupported` last. Exit 0; 1 when a case named in the baseline does not pass, or,
 * without a baseline, when a case fails; 2 for bad usage; 77 when a DIR does not exist (the corpus
 * is not part of the repository). */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "models/onnx/onnx.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/compare.h"
#include "tests/conformance/randfill.h"
#include "tests/conformance/runner.h"

#define MEMORY_LIMIT ((size_t)8 << 30)
#define SKIP         77

enum result { PASSED, FAILED, UNSUPPORTED, RESULTS };
static const char *const result_words[RESULTS] = {"pass", "FAIL", "unsupported"};

struct options {
    const char *filter, *op, *manifest, *baseline, *after;
    bool list, verbose, session;
};

/* Per operator and opset of the models: how their cases ended. */
struct op_row {
    char name[130];
    size_t counts[RESULTS];
};

struct totals {
    size_t counts[RESULTS];
    struct op_row *rows;
    size_t row_count;
};

/* ---- a crash names its case ---- */

static char current_case[256];

static void on_crash(int signal_number)
{
    static const char text[] = "\ncrashed while running ";
    /* Nothing but write() may be called here; if it fails there is nobody left to tell. */
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0 ||
        write(STDERR_FILENO, current_case, strlen(current_case)) < 0 ||
        write(STDERR_FILENO, "\n", 1) < 0)
        _exit(1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void guard(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    static char stack[64 * 1024]; /* an overflowed stack cannot carry the handler */
    const stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternative, NULL);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK};
        sigaction(signals[i], &action, NULL);
    }
}

/* ---- running one case ---- */

static void drop(struct tensor **tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        tensor_unref(tensors[i]);
    free(tensors);
}

static enum status compare_outputs(const struct conformance_case *c, size_t set,
                                   const struct graph *graph, const enum dtype *declared,
                                   struct tensor **outputs, struct error *err)
{
    for (size_t i = 0; i < graph->output_count; i++) {
        struct tensor *expected;
        TRY(case_tensor(c, set, "output", i, &expected, err));
        enum status status =
            compare_tensors(outputs[i], expected, declared[i], c->rtol, c->atol, err);
        tensor_unref(expected);
        if (status != STATUS_OK)
            return error_prefix(err, "output %zu '%s' of data set %zu", i, graph->outputs[i]->name,
                                set);
    }
    struct tensor *more;
    if (case_tensor(c, set, "output", graph->output_count, &more, NULL) == STATUS_OK) {
        tensor_unref(more);
        return error_set(err, STATUS_SHAPE, "the graph has only %zu outputs", graph->output_count);
    }
    return STATUS_OK;
}

static enum status run_set(const struct conformance_case *c, size_t set, struct graph *graph,
                           const enum dtype *declared, runner_fn run, struct error *err)
{
    struct tensor **inputs = calloc(graph->input_count + 1, sizeof *inputs);
    struct tensor **outputs = calloc(graph->output_count + 1, sizeof *outputs);
    enum status status =
        inputs && outputs ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (size_t i = 0; status == STATUS_OK && i < graph->input_count; i++)
        status = case_tensor(c, set, "input", i, &inputs[i], err);
    if (status == STATUS_OK)
        status = run(graph, inputs, outputs, err);
    if (status == STATUS_OK)
        status = compare_outputs(c, set, graph, declared, outputs, err);
    if (inputs)
        drop(inputs, graph->input_count);
    if (outputs)
        drop(outputs, graph->output_count);
    return status;
}

static enum status run_case(const struct conformance_case *c, runner_fn run, struct error *err)
{
    struct onnx_model model;
    TRY(onnx_load_file(c->model, MEMORY_LIMIT, &model, err));
    enum status status = c->randfill ? randfill(model.graph, c->gain, err) : STATUS_OK;
    size_t sets = case_sets(c);
    /* Running infers dtypes into the graph: keep what the file says. */
    enum dtype *declared = calloc(model.graph->output_count + 1, sizeof *declared);
    if (!declared)
        status = error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (size_t i = 0; declared && i < model.graph->output_count; i++)
        declared[i] = model.graph->outputs[i]->dtype;
    for (size_t set = 0; status == STATUS_OK && set < sets; set++)
        status = run_set(c, set, model.graph, declared, run, err);
    free(declared);
    onnx_model_done(&model);
    return status;
}

/* ---- the table ---- */

static struct op_row *row_of(struct totals *totals, const struct onnx_op_use *use)
{
    char name[sizeof totals->rows->name];
    snprintf(name, sizeof name, "%s%s%s", use->domain, *use->domain ? "." : "", use->name);
    for (size_t i = 0; i < totals->row_count; i++)
        if (!strcmp(totals->rows[i].name, name))
            return &totals->rows[i];
    struct op_row *bigger = realloc(totals->rows, (totals->row_count + 1) * sizeof *bigger);
    if (!bigger)
        return NULL;
    totals->rows = bigger;
    struct op_row *row = &totals->rows[totals->row_count++];
    *row = (struct op_row){0};
    memcpy(row->name, name, sizeof name);
    return row;
}

static void count_operators(struct totals *totals, const struct onnx_op_use *uses, size_t count,
                            enum result result)
{
    for (size_t i = 0; i < count; i++) {
        bool again = false; /* the same operator at another opset counts once a case */
        for (size_t k = 0; k < i; k++)
            again = again || (!strcmp(uses[k].name, uses[i].name) &&
                              !strcmp(uses[k].domain, uses[i].domain));
        struct op_row *row = again ? NULL : row_of(totals, &uses[i]);
        if (row)
            row->counts[result]++;
    }
}

static int by_row_name(const void *a, const void *b)
{
    const struct op_row *left = a, *right = b;
    return strcmp(left->name, right->name);
}

static void print_table(const struct totals *totals)
{
    if (totals->row_count)
        qsort(totals->rows, totals->row_count, sizeof *totals->rows, by_row_name);
    printf("%-40s %8s %8s %12s\n", "operator", "passed", "failed", "unsupported");
    for (size_t i = 0; i < totals->row_count; i++)
        printf("%-40s %8zu %8zu %12zu\n", totals->rows[i].name, totals->rows[i].counts[PASSED],
               totals->rows[i].counts[FAILED], totals->rows[i].counts[UNSUPPORTED]);
}

/* ---- lists of names: baseline, manifest ---- */

/* Is `name` one of the lines of `text`? A line ends at a tab too (manifests); '#' is a comment. */
static bool has_line(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = text; line && *line;) {
        if (!strncmp(line, name, length) && strchr("\t\r\n", line[length]))
            return true;
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return false;
}

/* A manifest has the names without the folder they lie in. */
static bool is_in_manifest(const char *manifest, const char *name)
{
    const char *slash = strchr(name, '/');
    return has_line(manifest, name) || (slash && has_line(manifest, slash + 1));
}

static bool uses_operator(const struct onnx_op_use *uses, size_t count, const char *op)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(uses[i].name, op))
            return true;
    return false;
}

/* ---- the run ---- */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static enum result judge(const struct conformance_case *c, const struct options *options)
{
    struct error err = {0};
    snprintf(current_case, sizeof current_case, "%s", c->name);
    if (options->verbose) {
        printf("%s … ", c->name);
        fflush(stdout);
    }
    double start = seconds();
    enum status status = run_case(c, options->session ? run_compiled : run_interpreted, &err);
    enum result result = status == STATUS_OK            ? PASSED
                         : status == STATUS_UNSUPPORTED ? UNSUPPORTED
                                                        : FAILED;
    if (options->verbose)
        printf("%s (%.3f s)%s%s\n", result_words[result], seconds() - start,
               result == PASSED ? "" : ": ", result == PASSED ? "" : err.message);
    else if (result != PASSED)
        printf("%s %s: %s\n", result_words[result], c->name, err.message);
    fflush(stdout);
    return result;
}

static size_t run_all(const struct case_list *list, const struct options *options,
                      const char *manifest, const char *baseline, struct totals *totals)
{
    size_t regressions = 0, first = 0;
    for (size_t i = 0; options->after && i < list->count; i++)
        first = strcmp(list->cases[i].name, options->after) == 0 ? i + 1 : first;
    for (size_t i = first; i < list->count; i++) {
        const struct conformance_case *c = &list->cases[i];
        struct onnx_op_use *uses = NULL;
        size_t use_count = 0;
        if ((options->filter && !strstr(c->name, options->filter)) ||
            (manifest && !is_in_manifest(manifest, c->name)))
            continue;
        if ((options->op || options->list) &&
            onnx_list_ops(c->model, NULL, 0, &uses, &use_count, NULL) != STATUS_OK)
            use_count = 0;
        if (!options->op || uses_operator(uses, use_count, options->op)) {
            enum result result = judge(c, options);
            totals->counts[result]++;
            count_operators(totals, uses, use_count, result);
            if (baseline && result != PASSED && has_line(baseline, c->name)) {
                printf("REGRESSION %s passed before\n", c->name);
                regressions++;
            }
        }
        free(uses);
    }
    return regressions;
}

static bool parse_options(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        {"filter", required_argument, NULL, 'f'},
        {"op", required_argument, NULL, 'o'},
        {"manifest", required_argument, NULL, 'm'},
        {"baseline", required_argument, NULL, 'b'},
        {"list", no_argument, NULL, 'l'},
        {"session", no_argument, NULL, 's'},
        {"cuda", no_argument, NULL, 'g'},
        {"after", required_argument, NULL, 'a'},
        {NULL, 0, NULL, 0},
    };
    for (int option; (option = getopt_long(argc, argv, "v", names, NULL)) != -1;) {
        switch (option) {
        case 'f':
            options->filter = optarg;
            break;
        case 'o':
            options->op = optarg;
            break;
        case 'm':
            options->manifest = optarg;
            break;
        case 'b':
            options->baseline = optarg;
            break;
        case 'l':
            options->list = true;
            break;
        case 's':
            options->session = true;
            break;
        case 'g':
            options->session = true;
            run_compiled_on_cuda();
            break;
        case 'a':
            options->after = optarg;
            break;
        case 'v':
            options->verbose = true;
            break;
        default:
            return false;
        }
    }
    return optind < argc;
}

/* "shared:X" is X in the folder beside the repository, or where LENSD_SHARED says. malloc'ed. */
static char *folder_of_argument(const char *argument)
{
    static const char prefix[] = "shared:";
    const char *shared = getenv("LENSD_SHARED");
    char *folder;
    if (strncmp(argument, prefix, sizeof prefix - 1))
        return strdup(argument);
    if (asprintf(&folder, "%s/%s", shared ? shared : LENSD_SOURCE_ROOT "/../shared",
                 argument + sizeof prefix - 1) < 0)
        return NULL;
    return folder;
}

/* False when there is no such folder (*ret_missing) or it cannot be read (*err). */
static bool add_folder(struct case_list *list, const char *argument, bool *ret_missing,
                       struct error *err)
{
    char *folder = folder_of_argument(argument);
    *ret_missing = folder && access(folder, F_OK);
    if (*ret_missing)
        printf("skipped: there is no folder %s\n", folder);
    bool ok = folder && !*ret_missing && cases_find(list, folder, err) == STATUS_OK;
    if (!folder)
        (void)error_set(err, STATUS_NO_MEMORY, "out of memory");
    free(folder);
    return ok;
}

static int fail(const struct error *err, int code)
{
    fprintf(stderr, "lensd_conformance: %s\n", err->message);
    return code;
}

/* Exit status: 0, 1 with a failure or a regression, 2 with a message, SKIP without the folder. */
static int run(int argc, char **argv, const struct options *options, struct case_list *list,
               const char *manifest, const char *baseline)
{
    struct totals totals = {0};
    struct error err;
    for (int i = optind; i < argc; i++) {
        bool missing;
        if (!add_folder(list, argv[i], &missing, &err))
            return missing ? SKIP : fail(&err, 2);
    }
    guard();
    size_t regressions = run_all(list, options, manifest, baseline, &totals);
    if (options->list)
        print_table(&totals);
    printf("%zu passed, %zu failed, %zu unsupported\n", totals.counts[PASSED],
           totals.counts[FAILED], totals.counts[UNSUPPORTED]);
    free(totals.rows);
    return regressions || (!options->baseline && totals.counts[FAILED]) ? 1 : 0;
}

int main(int argc, char **argv)
{
    struct options options = {0};
    struct case_list list = {0};
    struct error err;
    char *manifest = NULL, *baseline = NULL;
    size_t size;
    if (!parse_options(argc, argv, &options)) {
        fprintf(stderr,
                "usage: lensd_conformance DIR... [--filter TEXT] [--op OP] [--manifest FILE]"
                " [--list] [--baseline FILE] [--session] [--cuda] [--after CASE] [-v]\n");
        return 2;
    }
    int code;
    if ((options.manifest && read_whole(options.manifest, &manifest, &size, &err) != STATUS_OK) ||
        (options.baseline && read_whole(options.baseline, &baseline, &size, &err) != STATUS_OK))
        code = fail(&err, 2);
    else
        code = run(argc, argv, &options, &list, manifest, baseline);
    cases_done(&list);
    free(manifest);
    free(baseline);
    return code;
}
