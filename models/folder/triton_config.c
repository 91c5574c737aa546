/* Triton's config.pbtxt, in protobuf's text format: the few keys that lensd uses.
 *
 * pbtxt_check() has found the text well-formed. The rest is a scanner, not a parser: comments and
 * texts are passed over, brackets counted, and of each key only the one that is last on each level
 * is remembered, so that `name` and `dims` are known to belong to an input. Keys that lensd does
 * not know are Triton's business. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"

#define WORD_MAX 40

struct pbtxt_scan {
    const char *at;
    /* the key that opened each level, and the last of this one */
    char keys[PBTXT_DEPTH_MAX + 1][WORD_MAX];
    size_t depth;
    bool in_list; /* behind "dims: [" */
    struct triton_config *config;
    struct version_policy *policy; /* either of the two is wanted */
    struct error *err;
};

void triton_config_done(struct triton_config *config)
{
    free(config->label_file);
    for (size_t i = 0; i < config->input_count; i++)
        free(config->inputs[i].name);
    *config = (struct triton_config){0};
}

static bool is_batch_key(const struct pbtxt_scan *s)
{
    return s->config && s->depth == 0 && !strcmp(s->keys[0], "max_batch_size");
}

static enum status no_batch(struct pbtxt_scan *s)
{
    return error_set(s->err, STATUS_MODEL, "max_batch_size is not a number of images");
}

static const char *triton_key_of(const struct pbtxt_scan *s, size_t level)
{
    return level <= s->depth ? s->keys[level] : "";
}

/* Within `input [ {` or `input {`: which key was last on this level. */
static bool is_member_of(const struct pbtxt_scan *s, const char *parent, const char *key)
{
    if (s->depth < 1 || strcmp(triton_key_of(s, 0), parent) != 0 ||
        strcmp(s->keys[s->depth], key) != 0)
        return false;
    for (size_t level = 1; level < s->depth; level++)
        if (s->keys[level][0])
            return false; /* deeper: another message's member */
    return true;
}

static enum status take_text(struct pbtxt_scan *s, const char *text, size_t size)
{
    struct triton_config *config = s->config;
    if (!config)
        return STATUS_OK;
    const char *key = s->keys[s->depth];
    if (is_batch_key(s))
        return no_batch(s);
    if (is_member_of(s, "input", "name") && config->input_count > 0) {
        struct triton_input *input = &config->inputs[config->input_count - 1];
        free(input->name);
        input->name = strndup(text, size);
        return input->name ? STATUS_OK : error_no_memory(s->err, "while reading a configuration");
    }
    if (strcmp(key, "label_filename") != 0 || size == 0 || config->label_file)
        return STATUS_OK; /* the first output's labels count */
    config->label_file = strndup(text, size);
    if (!config->label_file)
        return error_no_memory(s->err, "while reading a configuration");
    if (strchr(config->label_file, '/') || strstr(config->label_file, ".."))
        return error_set(s->err, STATUS_MODEL,
                         "label_filename '%.60s' is not the name of a file in the model's folder",
                         config->label_file);
    return STATUS_OK;
}

static enum status take_policy_number(struct pbtxt_scan *s, long long value)
{
    struct version_policy *policy = s->policy;
    if (!policy || strcmp(triton_key_of(s, 0), "version_policy") != 0 || value < 0)
        return STATUS_OK;
    if (!strcmp(s->keys[s->depth], "num_versions"))
        policy->latest = value > 0 ? (size_t)value : 1;
    if (strcmp(s->keys[s->depth], "versions") != 0)
        return STATUS_OK;
    if (policy->count == COUNT_OF(policy->versions))
        return error_set(s->err, STATUS_MODEL, "version_policy names more than %zu versions",
                         COUNT_OF(policy->versions));
    policy->versions[policy->count++] = (uint64_t)value;
    return STATUS_OK;
}

static enum status take_number(struct pbtxt_scan *s, long long value)
{
    struct triton_config *config = s->config;
    TRY(take_policy_number(s, value));
    if (!config)
        return STATUS_OK;
    if (is_batch_key(s)) {
        if (value < 0 || value > INT32_MAX)
            return no_batch(s);
        config->max_batch = (int)value;
    }
    if (is_member_of(s, "input", "dims") && config->input_count > 0) {
        struct triton_input *input = &config->inputs[config->input_count - 1];
        if (input->rank == TENSOR_MAX_RANK)
            return error_set(s->err, STATUS_MODEL, "an input has more than %d dims",
                             TENSOR_MAX_RANK);
        if (value < DIM_UNKNOWN)
            return error_set(s->err, STATUS_MODEL, "dims: %lld is neither a size nor -1", value);
        input->dims[input->rank++] = value;
    }
    return STATUS_OK;
}

static enum status take_word(struct pbtxt_scan *s)
{
    size_t length = 0;
    while (isalnum((unsigned char)s->at[length]) || s->at[length] == '_')
        length++;
    const char *behind = s->at + length + strspn(s->at + length, " \t\r\n");
    bool is_key = *behind && strchr(":{<[", *behind);
    if (is_key) {
        snprintf(s->keys[s->depth], WORD_MAX, "%.*s",
                 (int)(length < WORD_MAX ? length : WORD_MAX - 1), s->at);
        bool policy = s->policy && !strcmp(triton_key_of(s, 0), "version_policy");
        if (policy && !strcmp(s->keys[s->depth], "all"))
            s->policy->kind = VERSIONS_ALL;
        if (policy && !strcmp(s->keys[s->depth], "specific"))
            s->policy->kind = VERSIONS_SPECIFIC;
        if (s->config && is_member_of(s, "input", "reshape") && s->config->input_count > 0)
            s->config->inputs[s->config->input_count - 1].is_reshaped = true;
    } else if (is_batch_key(s)) {
        return no_batch(s);
    }
    s->at += length;
    return STATUS_OK;
}

static enum status triton_open_level(struct pbtxt_scan *s)
{
    struct triton_config *config = s->config;
    if (is_batch_key(s))
        return no_batch(s);
    bool input = config && *s->at != '[' && !strcmp(s->keys[0], "input") &&
                 (s->depth == 0 || (s->depth == 1 && !s->keys[1][0]));
    if (input) {
        if (config->input_count == TRITON_INPUTS_MAX)
            return error_set(s->err, STATUS_MODEL, "it has more than %d inputs", TRITON_INPUTS_MAX);
        config->inputs[config->input_count++] = (struct triton_input){0};
    }
    s->keys[++s->depth][0] = '\0';
    s->at++;
    return STATUS_OK;
}

static void close_level(struct pbtxt_scan *s)
{
    if (s->depth > 0)
        s->depth--;
    s->at++;
}

static enum status take_string(struct pbtxt_scan *s)
{
    const char *text = s->at + 1, *end = pbtxt_text_end(s->at);
    if (!end)
        return error_set(s->err, STATUS_MODEL, "a text has no end");
    s->at = end + 1;
    return take_text(s, text, (size_t)(end - text));
}

/* Fractions are nothing that lensd reads. */
static enum status take_fraction(struct pbtxt_scan *s)
{
    s->at += strspn(s->at, ".+-0123456789abcdefABCDEFxX");
    if (is_batch_key(s))
        return no_batch(s);
    if (s->config && is_member_of(s, "input", "dims"))
        return error_set(s->err, STATUS_MODEL, "dims: expected whole decimal numbers");
    return STATUS_OK;
}

static enum status take_digits(struct pbtxt_scan *s)
{
    char *end;
    errno = 0;
    long long value = strtoll(s->at, &end, 10);
    if (end == s->at) { /* a '-' alone, or before a word */
        s->at++;
        return STATUS_OK;
    }
    s->at = end;
    if (*end == '.' || isalpha((unsigned char)*end))
        return take_fraction(s);
    return take_number(s, errno ? LLONG_MIN : value);
}

static enum status run(struct pbtxt_scan *s)
{
    while (*s->at) {
        char c = *s->at;
        if (c == '#')
            s->at += strcspn(s->at, "\n");
        else if (c == '"' || c == '\'')
            TRY(take_string(s));
        else if (c == '{' || c == '<')
            TRY(triton_open_level(s));
        else if (c == '[' && strcmp(s->keys[s->depth], "dims") != 0 &&
                 strcmp(s->keys[s->depth], "versions") != 0)
            TRY(triton_open_level(s));
        else if (c == '[')
            s->in_list = (s->at++, true);
        else if (c == ']' && s->in_list)
            s->in_list = (s->at++, false);
        else if (c == '}' || c == '>' || c == ']')
            close_level(s);
        else if (isalpha((unsigned char)c) || c == '_')
            TRY(take_word(s));
        else if (c == '-' || isdigit((unsigned char)c))
            TRY(take_digits(s));
        else
            s->at++;
    }
    return STATUS_OK;
}

/* The line is that of what was read last. */
static enum status scan_text(struct pbtxt_scan *s, const char *text, size_t size)
{
    TRY(pbtxt_check(text, size, s->err));
    s->at = text;
    enum status status = run(s);
    return status == STATUS_MODEL ? error_prefix(s->err, "line %zu", pbtxt_line(text, s->at))
                                  : status;
}

enum status triton_config_read(const char *text, size_t size, struct triton_config *ret,
                               struct error *err)
{
    struct triton_config config = {0};
    struct pbtxt_scan scan = {.config = &config, .err = err};
    enum status status = scan_text(&scan, text, size);
    if (status != STATUS_OK) {
        triton_config_done(&config);
        return status;
    }
    *ret = config;
    return STATUS_OK;
}

enum status version_policy_read(const char *folder, struct version_policy *ret, struct error *err)
{
    struct model_place place = {.folders = {(char *)(uintptr_t)folder, NULL}};
    char *text = NULL, *path = NULL;
    size_t size;
    *ret = (struct version_policy){.kind = VERSIONS_LATEST, .latest = 1};
    enum status status = model_side_file(&place, "config.pbtxt", &text, &size, &path, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    struct pbtxt_scan scan = {.policy = ret, .err = err};
    if (status == STATUS_OK && (status = scan_text(&scan, text, size)) != STATUS_OK)
        (void)error_prefix(err, "%.200s", path);
    free(text);
    free(path);
    return status;
}
