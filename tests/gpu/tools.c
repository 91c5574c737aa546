/* What a bundle takes to a GPU, in one file: lensd, and the programs that test and measure it. The
 * whole engine is in each of them, and a bundle need not carry it as often as that. Which one runs
 * says the name that the file is called by, which a link beside it gives; any other is lensd:
 *
 *     bench_forward        tests/bench/bench_forward.c
 *     bench_image          tests/bench/bench_image.c
 *     lensd_graphs         tests/gpu/graphs.c
 *     lensd_conformance    tests/conformance/main.c */
#include <string.h>

#include "engine/base/size.h"

int tool_lensd(int argc, char **argv);
int tool_bench_forward(int argc, char **argv);
int tool_bench_image(int argc, char **argv);
int tool_lensd_graphs(int argc, char **argv);
int tool_lensd_conformance(int argc, char **argv);

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} tools[] = {
    {"bench_forward", tool_bench_forward},
    {"bench_image", tool_bench_image},
    {"lensd_graphs", tool_lensd_graphs},
    {"lensd_conformance", tool_lensd_conformance},
};

int main(int argc, char **argv)
{
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    const char *name = slash ? slash + 1 : argc > 0 ? argv[0] : "";
    for (size_t i = 0; i < COUNT_OF(tools); i++)
        if (strcmp(name, tools[i].name) == 0)
            return tools[i].run(argc, argv);
    return tool_lensd(argc, argv);
}
