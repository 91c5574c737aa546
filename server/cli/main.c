/* The program: selects and runs the command. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "lensd_version.h"
#include "server/app/process.h"
#include "server/app/serve.h"
#include "server/cli/commands.h"
#include "server/image/image.h"
#include "server/observe/log.h"

/* In the order of enum command. */
static int (*const runs[COMMANDS])(const struct config *config) = {
    command_serve,   command_predict, command_predict,  command_devices, command_health,
    command_inspect, command_bench,   command_quantize, command_pull,    command_key};

static void print_usage(FILE *out)
{
    fprintf(out, "lensd %s: photos in, labels out\n\nUsage: lensd COMMAND [options]\n\nCommands:\n",
            LENSD_VERSION);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-10s%s\n", config_commands[i].name, config_commands[i].summary);
    fprintf(out, "\nExamples:\n"
                 "  lensd serve\n"
                 "  curl --data-binary @photo.jpg http://127.0.0.1:8080/predict\n"
                 "  lensd predict resnet50/ cat.jpg\n\n"
                 "lensd COMMAND --help lists the options of a command.\n"
                 "lensd --version prints the version.\n");
}

static int unknown_command(const char *word)
{
    const char *names[COMMANDS];
    struct error err;
    for (size_t i = 0; i < COMMANDS; i++)
        names[i] = config_commands[i].name;
    if (word[0] == '-')
        error_set(&err, STATUS_CONFIG, "'%.60s' comes before the command; use: lensd serve %.60s",
                  word, word);
    else {
        const char *nearest = text_nearest(word, names, COMMANDS);
        if ((!nearest || strchr(word, '/')) && access(word, F_OK) == 0)
            error_set(&err, STATUS_CONFIG,
                      "'%.160s' is not a command; to serve it as a model: lensd serve %.160s", word,
                      word);
        else
            error_set(&err, STATUS_CONFIG,
                      "unknown command '%.60s'; %s%s%slensd --help lists the commands", word,
                      nearest ? "did you mean '" : "", nearest ? nearest : "",
                      nearest ? "'? " : "");
    }
    return process_failed(&err);
}

static int run_command(size_t which, int argc, char **argv)
{
    struct config config;
    struct error err;
    int result;
    if (config_read(1u << which, argc, argv, &config, &err) != STATUS_OK) {
        result = process_failed(&err);
    } else if (config.wants_help) {
        config_help(config.command, stdout);
        result = 0;
    } else {
        for (size_t i = 0; i < CONFIG_NOTES; i++)
            if (config.notes[i][0] && config.command != COMMAND_SERVE) /* serve logs them */
                fprintf(stderr, "lensd: %s\n", config.notes[i]);
        image_use_old_libheif(config.old_libheif);
        result = runs[which](&config);
    }
    config_done(&config);
    return result;
}

/* Writes the rest of the output, and reports if writing failed, for example because the disk is
 * full. Returns the exit status: `result`, or 1 if `result` is 0 and writing failed. */
static int finish_output(int result)
{
    bool failed = ferror(stdout);
    errno = 0; /* if writing failed earlier, fflush() fails again and sets errno */
    failed |= fflush(stdout) != 0;
    if (!failed)
        failed = fclose(stdout) != 0 && errno != EBADF; /* EBADF: stdout was closed */
    if (!failed)
        return result;
    if (errno == EPIPE) /* the reader has closed the pipe: lensd inspect MODEL | head */
        return result ? result : 1;
    fprintf(stderr, "lensd: cannot write the output%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return result ? result : 1;
}

/* Each thread that allocates gets its own arena, for which glibc reserves 64 MB of address space.
 * If address space is limited (ulimit -v), threads share one arena to save it. */
static void save_address_space(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        mallopt(M_ARENA_MAX, 1);
}

/* Opens descriptors 0, 1 and 2 if they are closed. Otherwise a file or socket could get one of
 * these numbers, and the log or an answer would be written into it. Reading from 0 and writing to 1
 * and 2 still fails. */
static void fill_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
    save_address_space();
    log_find_journal();
    /* A closed pipe, or a file at its size limit, must be an error of write(), not a signal. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_usage(stdout);
        return finish_output(0);
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V") || !strcmp(argv[1], "version")) {
        printf("lensd %s\n", LENSD_VERSION);
        return finish_output(0);
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[1], config_commands[i].name))
            return finish_output(run_command(i, argc - 2, argv + 2));
    return unknown_command(argv[1]);
}
