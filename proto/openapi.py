"""Writes the documents that the binary contains from openapi.yaml: openapi.py INPUT VERSION OUTPUT.yaml OUTPUT.json OUTPUT.html

Runs at build time with the Python that Meson itself needs, and nothing else: parse() reads the part of
YAML that openapi.yaml is written in (block maps and lists, flow maps and lists on one line, plain and
double-quoted scalars, anchors of block maps and lists, aliases, merge keys; no multi-line scalars or
tabs), and refuses the rest. Not every reader of YAML knows merge keys: the outputs have none.
"""

import html
import json
import re
import sys


class Lines:
    def __init__(self, text):
        self.lines = []
        for number, line in enumerate(text.splitlines(), 1):
            if "\t" in line:
                raise ValueError(f"line {number}: a tab")
            if line.strip() and not line.lstrip().startswith("#"):
                self.lines.append((len(line) - len(line.lstrip()), line.strip(), number))
        self.at = 0
        self.anchors = {}

    def peek(self):
        return self.lines[self.at] if self.at < len(self.lines) else (-1, "", 0)


def scalar(text, number, anchors):
    if text.startswith('"'):
        return json.loads(text)
    if text.startswith("*"):
        if text[1:] not in anchors:
            raise ValueError(f"line {number}: '{text}' has no anchor above it")
        return anchors[text[1:]]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d+", text):
        return float(text)
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    if text[:1] in "&!|>'%@`":
        raise ValueError(f"line {number}: '{text}' is not understood")
    return text


def flow(text, number, anchors):
    """Reads the value at the beginning of `text`; returns it and the rest of the text."""
    text = text.lstrip()
    if text[:1] in "[{":
        close, result = {"[": "]", "{": "}"}[text[0]], [] if text[0] == "[" else {}
        text = text[1:].lstrip()
        while not text.startswith(close):
            if close == "}":
                key, text = re.fullmatch(r'("(?:[^"\\]|\\.)*"|[^:,{}\[\]]+):\s*(.*)', text).groups()
                result[scalar(key.strip(), number, anchors)], text = flow(text, number, anchors)
            else:
                value, text = flow(text, number, anchors)
                result.append(value)
            text = text.lstrip()
            if text.startswith(","):
                text = text[1:].lstrip()
            elif not text.startswith(close):
                raise ValueError(f"line {number}: ',' or '{close}' was expected")
        return result, text[1:]
    match = re.match(r'"(?:[^"\\]|\\.)*"|[^,\[\]{}]+', text)
    return scalar(match.group().strip(), number, anchors), text[match.end():]


def value(text, number, anchors):
    if text[:1] in "[{":
        result, rest = flow(text, number, anchors)
        if rest.strip():
            raise ValueError(f"line {number}: '{rest}' behind a value")
        return result
    return scalar(text, number, anchors)


def split_key(text, number):
    match = re.match(r'("(?:[^"\\]|\\.)*"|[^\s{\["].*?):(?:\s+(.*))?$', text)
    if not match:
        raise ValueError(f"line {number}: a key was expected, not '{text}'")
    key = match.group(1)
    return json.loads(key) if key.startswith('"') else key, match.group(2)


def block(lines, indent):
    result = [] if lines.peek()[1].startswith("- ") else {}
    merged = set()  # keys that a merge key brought, which others replace
    while lines.peek()[0] == indent:
        _, text, number = lines.peek()
        if text.startswith("- ") != isinstance(result, list):
            raise ValueError(f"line {number}: lists and maps are mixed")
        if isinstance(result, list):
            inner = text[2:].lstrip()
            if inner[:1] not in '[{"' and re.match(r"[^\s]+:(\s|$)", inner):
                inside = indent + len(text) - len(inner)
                lines.lines[lines.at] = (inside, inner, number)
                result.append(block(lines, inside))
            else:
                lines.at += 1
                result.append(value(inner, number, lines.anchors))
            continue
        key, rest = split_key(text, number)
        if key in result and key not in merged:
            raise ValueError(f"line {number}: '{key}' is there twice")
        lines.at += 1
        if key == "<<":
            maps = value(rest, number, lines.anchors)
            for inner in maps if isinstance(maps, list) else [maps]:
                new = {name: inner[name] for name in inner if name not in result}
                merged.update(new)
                result.update(new)
            continue
        merged.discard(key)
        if rest and not rest.startswith("&"):
            result[key] = value(rest, number, lines.anchors)
        elif lines.peek()[0] > indent:
            result[key] = block(lines, lines.peek()[0])
        else:
            result[key] = None
        if rest and rest.startswith("&"):
            lines.anchors[rest[1:]] = result[key]
    return result


def parse(text):
    """The document, without x-shared, which is there for its anchors."""
    lines = Lines(text)
    result = block(lines, 0)
    if lines.at != len(lines.lines):
        raise ValueError(f"line {lines.peek()[2]}: indented unlike its neighbours")
    result.pop("x-shared", None)
    return result


def dump(node, indent=0):
    """YAML of the kind that every reader knows. Strings are quoted as in JSON."""
    out = []
    for key, inner in node.items() if isinstance(node, dict) else [("", inner) for inner in node]:
        if isinstance(node, list):
            start = "- "
        else:
            start = (key if re.fullmatch(r"[A-Za-z/$][\w/.:+${}-]*", key) else json.dumps(key)) + ":"
        if not isinstance(inner, (dict, list)) or not inner:
            out.append(" " * indent + start.rstrip() + " " + json.dumps(inner, ensure_ascii=False) + "\n")
        elif isinstance(node, list):
            out.append(" " * indent + start + dump(inner, indent + 2).lstrip())
        else:
            out.append(" " * indent + start + "\n" + dump(inner, indent + 2))
    return "".join(out)


def resolve(document, node):
    while isinstance(node, dict) and "$ref" in node:
        target = document
        for part in node["$ref"].lstrip("#/").split("/"):
            target = target[part]
        node = target
    return node


def short(document, schema, depth=0):
    """A schema in a few words."""
    name = schema.get("$ref", "").rsplit("/", 1)[-1]
    if name:
        return f'<a href="#schema-{name}">{name}</a>'
    if schema.get("type") == "array":
        return "[" + (short(document, schema["items"], depth + 1) if "items" in schema else "…") + "]"
    if schema.get("type") == "object" and schema.get("properties"):
        return "{" + ", ".join(map(html.escape, schema["properties"])) + "}"
    words = [str(schema.get("format", schema.get("type", "")))]
    if "enum" in schema:
        words = [" | ".join(map(str, schema["enum"]))]
    if "minimum" in schema or "maximum" in schema:
        words.append(f"{schema.get('minimum', '')} … {schema.get('maximum', '')}")
    return html.escape(" ".join(words))


def trial(path, method, body, parameters):
    """A link, or forms for a photo, that send the request from the page without a script; "" if they cannot."""
    where = html.escape(path.lstrip("/") or ".")
    if "{" in path:
        return ""
    if method == "get":
        return f'<p><a href="{where}">Try it</a></p>'
    if not body or "multipart/form-data" not in body["content"]:
        return ""
    # An empty field would be sent, too, so a model has a form of its own.
    fields = [""] + ['<label>and the model <input name="model" required></label> '] * ("model" in parameters)
    return "".join(f'<form method="post" enctype="multipart/form-data" action="{where}"><label>Try it with a photo '
                   f'<input type="file" name="image" required></label> {field}<button>Send</button></form>' for field in fields)


def operation(document, path, item, method):
    op, out = item[method], []
    out.append(f'<section id="{op["operationId"]}"><h3><code>{method.upper()} {html.escape(path)}</code></h3>')
    out.append(f"<p>{html.escape(op['summary'])}. {html.escape(op.get('description', ''))}</p>")
    rows = [resolve(document, p) for p in item.get("parameters", []) + op.get("parameters", [])]
    if rows:
        out.append("<table><tr><th>parameter</th><th>in</th><th>is</th><th></th></tr>")
        out += [f"<tr><td><code>{html.escape(p['name'])}</code></td><td>{p['in']}</td>"
                f"<td>{short(document, p['schema'])}</td><td>{html.escape(p.get('description', ''))}</td></tr>"
                for p in rows]
        out.append("</table>")
    body = op.get("requestBody")
    if body:
        out.append("<p>Body: " + "; ".join(f"<code>{kind}</code> {short(document, media['schema'])}"
                                           for kind, media in body["content"].items()) + "</p>")
    out.append("<table><tr><th>status</th><th>when</th><th>body</th></tr>")
    for status, answer in sorted(op["responses"].items()):
        answer = resolve(document, answer)
        kinds = "; ".join(f"<code>{kind}</code> {short(document, media['schema'])}"
                          for kind, media in answer.get("content", {}).items())
        out.append(f"<tr><td>{status}</td><td>{html.escape(answer['description'])}</td><td>{kinds}</td></tr>")
    out.append("</table>" + trial(path, method, body, [p["name"] for p in rows]) + "</section>")
    return "\n".join(out)


STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1,h2,h3{line-height:1.2}h3{margin-top:2em}table{border-collapse:collapse;width:100%;margin:.5em 0}
td,th{border-bottom:1px solid #ddd;padding:.25em .6em .25em 0;text-align:left;vertical-align:top}
code{font:13px ui-monospace,monospace}nav a{display:block}a{color:#0550ae}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-color:#444}a{color:#79b8ff}}"""


def page(document):
    operations = {}
    for path, item in document["paths"].items():
        for method in item:
            if method != "parameters":
                operations.setdefault(item[method]["tags"][0], []).append((path, item, method))
    out = ['<!doctype html><html lang="en"><head><meta charset="utf-8"><title>lensd: the API</title>',
           '<meta name="viewport" content="width=device-width,initial-scale=1">',
           '<link rel="icon" href="favicon.ico" type="image/svg+xml">',
           f"<style>{STYLE}</style></head><body><h1>lensd: the API</h1>",
           f"<p>{html.escape(document['info']['summary'])}. {html.escape(document['info']['description'])}</p>",
           '<p>The same for programs: <a href="openapi.yaml">openapi.yaml</a>, '
           '<a href="openapi.json">openapi.json</a>.</p><nav>']
    for tag in document["tags"]:
        out.append(f"<h2>{html.escape(tag['description'])}</h2>")
        out += [f'<a href="#{item[method]["operationId"]}"><code>{method.upper()} {html.escape(path)}</code> '
                f"{html.escape(item[method]['summary'])}</a>" for path, item, method in operations[tag["name"]]]
    out.append("</nav>")
    for tag in document["tags"]:
        out.append(f"<h2>{html.escape(tag['description'])}</h2>")
        out += [operation(document, *entry) for entry in operations[tag["name"]]]
    out.append("<h2>Schemas</h2>")
    for name, schema in document["components"]["schemas"].items():
        out.append(f'<section id="schema-{name}"><h3>{name}</h3><p>{html.escape(schema.get("description", ""))}</p><table>')
        for key, inner in schema.get("properties", {}).items():
            needed = " (required)" if key in schema.get("required", []) else ""
            out.append(f"<tr><td><code>{html.escape(key)}</code>{needed}</td><td>{short(document, inner)}</td>"
                       f"<td>{html.escape(inner.get('description', ''))}</td></tr>")
        out.append("</table></section>")
    out.append("</body></html>")
    return "\n".join(out) + "\n"


def main():
    source, version, as_yaml, as_json, as_html = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        document = parse(file.read())
    document["info"]["version"] = version
    with open(as_yaml, "w", encoding="utf-8") as file:
        file.write(dump(document))
    with open(as_json, "w", encoding="utf-8") as file:
        json.dump(document, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")
    with open(as_html, "w", encoding="utf-8") as file:
        file.write(page(document))


if __name__ == "__main__":
    main()
