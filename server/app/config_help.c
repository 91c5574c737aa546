/* Prints --help from the table of options. tests/test_reference.py makes docs/reference.md and
 * docs/lensd.1 from its output. */
#include <string.h>

#include "engine/base/size.h"
#include "server/app/config_options.h"

#define COLUMNS     80
#define TEXT_COLUMN 28

const struct command_help config_commands[COMMANDS] = {
    {"serve", "serve a model over HTTP", "[MODEL] [options]",
     "Serves a model over HTTP: POST a photo to /predict, get labels back. Without MODEL it serves "
     "the built-in digit classifier.",
     "  lensd serve\n"
     "  lensd serve resnet50/ --port 9000\n"
     "  lensd serve model.onnx --host 0.0.0.0 --threads 4 --log-format json\n"
     "  curl --data-binary @photo.jpg http://127.0.0.1:8080/predict\n"},
    {"predict", "run a model on image files", "MODEL PHOTO… [options]",
     "Runs a model on photos without a server. PHOTO is a file, a folder (with its sub-folders), a "
     "pattern such as 'photos/*.jpg', or - for standard input. Prints each answer as soon as it is "
     "ready; Ctrl-C ends the run. Exits with 1 if a photo failed. It measures nothing: --precision "
     "auto is fp32 unless an earlier lensd serve has stored a choice for this model.",
     "  lensd predict resnet50/ cat.jpg dog.png\n"
     "  lensd predict digits seven.png --json\n"
     "  lensd predict yolo/ holiday/ --jsonl > found.jsonl\n"},
    {"embed", "print the vectors of photos or of a text", "MODEL PHOTO… [options]",
     "Prints the vector of each photo as a line of JSON, or with --text the vector of a text. "
     "MODEL is an embedding model, such as CLIP. PHOTO and the exit status are as for lensd "
     "predict.",
     "  lensd embed clip/ holiday/ > vectors.jsonl\n"
     "  lensd embed clip/ --text 'a red car'\n"},
    {"devices", "show the devices of this machine", "[options]",
     "Shows the devices of this machine, which of them can run a model, and why the others cannot.",
     "  lensd devices\n"
     "  lensd devices --json\n"},
    {"health", "ask a running lensd whether it is ready", "[options]",
     "Asks the lensd that listens on --host and --port whether it is ready. Exits with 0 if it is, "
     "1 if not. Use it in container health checks and scripts.",
     "  lensd health\n"
     "  lensd health --port 9000\n"},
    {"inspect", "show what a model is", "MODEL [options]",
     "Describes a model: inputs, outputs, operators, parameters, preprocessing, labels. Exits with "
     "1 if lensd cannot run it.",
     "  lensd inspect resnet50/\n"
     "  lensd inspect model.onnx --json\n"},
    {"bench", "time a model on each device and batch size", "[MODEL] [options]",
     "Times a model's forward pass on each device at each batch size, side by side: milliseconds, "
     "images per second, and the speed relative to the first device. --device auto means every "
     "device of this machine. A device that is missing has a row that says so.",
     "  lensd bench resnet50/\n"
     "  lensd bench resnet50/ --device cpu,cuda:0 --batch 1,8,32\n"
     "  lensd bench model.onnx --json\n"},
    {"quantize", "make an 8-bit model of a float32 one", "MODEL --calibrate PHOTOS [options]",
     "Converts a float32 model to 8 bits: an ONNX file with QuantizeLinear and DequantizeLinear, "
     "with the model's labels and preprocessing beside it. Prints how far it agrees with float32 "
     "on photos it was not calibrated on, and writes that to report.json.",
     "  lensd quantize resnet50/ --calibrate photos/\n"
     "  lensd quantize model.onnx --calibrate photos/ -o model-int8\n"},
    {"pull", "download a model from Hugging Face's hub",
     "hf:ORG/REPO[@REVISION][:FILE.onnx] [options]",
     "Downloads a model from Hugging Face's hub to a folder that lensd serves: its .onnx file, and "
     "labels, preprocessing and tokenizer beside it. A repeated pull continues where the last one "
     "stopped; each file is compared with the hub's hash. Environment: HF_ENDPOINT, HF_TOKEN, "
     "HF_HUB_OFFLINE as for Hugging Face's tools, SSL_CERT_FILE for certificates. No other command "
     "downloads anything.",
     "  lensd pull hf:onnx-community/mobilenetv4_conv_small.e2400_r224_in1k\n"
     "  lensd pull hf:Xenova/vit-base-patch16-224:onnx/model.onnx --models models\n"},
    {"key", "make an API key", "NAME [options]",
     "Makes an API key. Its line for the --api-keys file goes to standard output. The key itself "
     "is printed once, on standard error: give it to the client; the server only knows its hash.",
     "  lensd key alice >> keys\n"
     "  lensd key alice --rate 10 --burst 50 >> keys\n"},
};

/* Returns the columns that `size` bytes of UTF-8 take, one for each character. */
static size_t width_of(const char *text, size_t size)
{
    size_t width = 0;
    for (size_t i = 0; i < size; i++)
        width += ((unsigned char)text[i] & 0xC0) != 0x80;
    return width;
}

void config_print_wrapped(FILE *out, const char *text, size_t at, size_t indent)
{
    bool first = true;
    while (*text) {
        size_t size = strcspn(text, " ");
        size_t width = width_of(text, size);
        if (!first && at + 1 + width > COLUMNS) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
            first = true;
        }
        if (!first) {
            fputc(' ', out);
            at++;
        }
        fwrite(text, 1, size, out);
        at += width;
        first = false;
        text += size;
        while (*text == ' ')
            text++;
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const struct option *option, enum command command)
{
    char head[80], text[400];
    const char *help = command & (COMMAND_HEALTH | COMMAND_PULL) && option->other_help
                           ? option->other_help
                           : option->help;
    snprintf(head, sizeof head, "  --%s%s%s", option->name, option->value ? " " : "",
             option->value ? option->value : "");
    if (option->fallback && option->kind != OPTION_SWITCH)
        snprintf(text, sizeof text, "%s (default %s)", help, option->fallback);
    else
        snprintf(text, sizeof text, "%s", help);
    size_t width = width_of(head, strlen(head));
    fputs(head, out);
    if (width + 2 > TEXT_COLUMN) {
        fputc('\n', out);
        width = 0;
    }
    fprintf(out, "%*s", (int)(TEXT_COLUMN - width), "");
    config_print_wrapped(out, text, TEXT_COLUMN, TEXT_COLUMN);
}

void config_help(enum command command, FILE *out)
{
    const struct command_help *help = &config_commands[__builtin_ctz(command)];
    fprintf(out, "Usage: lensd %s %s\n\n", help->name, help->usage);
    config_print_wrapped(out, help->about, 0, 0);
    fprintf(out, "\nExamples:\n%s", help->examples);
    const char *group = NULL;
    for (size_t i = 0; i < config_option_count; i++) {
        const struct option *option = &config_options[i];
        if (!(option->commands & command))
            continue;
        if (!group || strcmp(group, option->group) != 0)
            fprintf(out, "\n%s:\n", option->group);
        group = option->group;
        print_option(out, option, command);
    }
    fputc('\n', out);
    config_print_wrapped(
        out,
        command == COMMAND_HEALTH
            ? "Each option is also an environment variable (--port: LENSD_PORT) and "
              "a key of the file that --config names; the server's configuration file works too. "
              "A flag wins over the environment, the environment over the file."
            : "Each option is also an environment variable (--top-k: LENSD_TOP_K) "
              "and a key of the file that --config names (\"top-k\"). A flag wins "
              "over the environment, the environment over the file.",
        0, 0);
}
