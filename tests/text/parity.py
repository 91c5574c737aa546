#!/usr/bin/env python3
"""lensd's tokenizers beside the Python packages `tokenizers` and `sentencepiece`: the same ids for texts in many scripts.

    parity.py ENCODE [--count N] [FOLDER | MODEL …]   compares; ENCODE is build/tests/text/encode. Folders with a tokenizer.json
                                                      and files of sentencepiece are compared besides those made here
    parity.py --fixtures FOLDER                       writes the small tokenizers and expected ids of tests/data/tokenizers

Exits with 77 where `tokenizers` is not installed. `sentencepiece` and `protobuf` are used where
they are there."""
import argparse
import io
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from texts import make_texts  # noqa: E402

try:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers as norm, pre_tokenizers as pre, processors as post, trainers
except ImportError:
    print("SKIP: the package `tokenizers` is not installed")
    sys.exit(77)
try:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
except ImportError:
    sentencepiece = None

GPT2_LIKE = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
QWEN_LIKE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def wrap(front, behind, kind=0):
    names = [n for n in (front, behind) if n]
    single = [f"{front}:{kind}"] if front else []
    single += [f"$A:{kind}"] + ([behind] if behind else [])
    return lambda t: post.TemplateProcessing(single=" ".join(single), pair="$A $B", special_tokens=[(n, t.token_to_id(n)) for n in names])


def train(model, corpus, trainer, normalizer=None, pre_tokenizer=None):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def wordpiece(corpus, size):
    bert = train(models.WordPiece(unk_token="[UNK]"), corpus,
                 trainers.WordPieceTrainer(vocab_size=size, limit_alphabet=size // 4, show_progress=False,
                                           special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
                 norm.BertNormalizer(), pre.BertPreTokenizer())
    bert.post_processor = post.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    yield "bert", bert
    cased = Tokenizer.from_str(bert.to_str())
    cased.normalizer = norm.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    cased.add_tokens([AddedToken("newtoken"), AddedToken("New Token", single_word=True),
                      AddedToken("extra", lstrip=True, rstrip=True, normalized=False)])
    cased.pre_tokenizer = pre.Sequence([pre.Whitespace(), pre.Digits(individual_digits=True)])
    cased.post_processor = wrap("[CLS]", "[SEP]", 1)(cased)
    cased.enable_truncation(20, direction="left")
    cased.enable_padding(length=12, pad_id=0, direction="left")
    yield "cased", cased


def byte_level(corpus, size):
    clip = train(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>", continuing_subword_prefix=""), corpus,
                 trainers.BpeTrainer(vocab_size=size, end_of_word_suffix="</w>", show_progress=False,
                                     initial_alphabet=pre.ByteLevel.alphabet(), special_tokens=["<|startoftext|>", "<|endoftext|>"]),
                 norm.Sequence([norm.NFC(), norm.Replace(Regex(r"\s+"), " "), norm.Lowercase()]),
                 pre.Sequence([pre.Split(Regex(GPT2_LIKE), "removed", invert=True), pre.ByteLevel(add_prefix_space=False)]))
    clip.post_processor = post.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0), trim_offsets=False, add_prefix_space=False)
    yield "clip", clip
    roberta = train(models.BPE(ignore_merges=True), corpus,
                    trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=pre.ByteLevel.alphabet(),
                                        special_tokens=["<s>", "</s>", "<pad>", "<mask>"]), None, pre.ByteLevel(add_prefix_space=True))
    roberta.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    roberta.post_processor = post.Sequence([post.ByteLevel(), wrap("<s>", "</s>")(roberta)])
    roberta.enable_padding(pad_to_multiple_of=8, pad_id=2)
    yield "roberta", roberta
    qwen = Tokenizer.from_str(roberta.to_str())
    qwen.normalizer = norm.NFC()
    qwen.pre_tokenizer = pre.Sequence([pre.Split(Regex(QWEN_LIKE), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    yield "qwen", qwen


def characters_bpe(corpus, size):
    gemma = train(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"), [c.replace(" ", "▁") for c in corpus],
                  trainers.BpeTrainer(vocab_size=size + 256, limit_alphabet=size // 4, show_progress=False,
                                      special_tokens=["<pad>", "<eos>", "<bos>", "<unk>"] + BYTES), None, pre.Split("▁", "merged_with_next"))
    plain = json.loads(gemma.to_str())  # bytes are pieces, not texts that are looked for
    plain["added_tokens"] = [t for t in plain["added_tokens"] if t["content"] not in BYTES]
    gemma = Tokenizer.from_str(json.dumps(plain, ensure_ascii=False))
    gemma.normalizer = norm.Replace(" ", "▁")
    gemma.pre_tokenizer = pre.Split(" ", "merged_with_previous")
    gemma.post_processor = wrap("<bos>", None)(gemma)
    yield "gemma", gemma
    llama = Tokenizer.from_str(gemma.to_str())
    llama.normalizer = norm.Sequence([norm.Prepend("▁"), norm.Replace(" ", "▁")])
    llama.pre_tokenizer = pre.Metaspace(prepend_scheme="never", split=False)
    yield "llama", llama
    first = Tokenizer.from_str(gemma.to_str())
    first.normalizer = norm.Sequence([norm.Strip(), norm.NFD(), norm.StripAccents()])
    first.pre_tokenizer = pre.Metaspace(prepend_scheme="first")
    yield "first", first
    suffix = train(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), corpus,
                   trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>"], end_of_word_suffix="</w>", limit_alphabet=size // 4,
                                       show_progress=False), norm.Sequence([norm.NFKC(), norm.Lowercase()]), pre.Whitespace())
    yield "suffix", suffix
    prefix = train(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True), corpus,
                   trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>"], continuing_subword_prefix="##", limit_alphabet=size // 4,
                                       show_progress=False), norm.NFKD(),
                   pre.Sequence([pre.WhitespaceSplit(), pre.Punctuation("merged_with_next"), pre.Digits()]))
    yield "prefix", prefix


def train_sentencepiece(corpus, size, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=out, vocab_size=size, minloglevel=2,
                                             hard_vocab_limit=False, **options)
    return out.getvalue()


def unigrams(files):
    """Tokenizers of the pieces of sentencepiece's models, as transformers converts them."""
    for name, has_table in (("unigram", True), ("unigram_bytes", False)):
        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString(files[name])
        tokenizer = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=proto.trainer_spec.unk_id,
                                             byte_fallback=proto.trainer_spec.byte_fallback))
        tokenizer.normalizer = norm.Sequence(
            [norm.Precompiled(proto.normalizer_spec.precompiled_charsmap), norm.Strip(left=False, right=True), norm.Replace(Regex(" {2,}"), "▁")] if has_table else
            [norm.Strip(), norm.NFKC(), norm.Lowercase()])
        tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="first" if has_table else "always")
        tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
        tokenizer.post_processor = wrap(None, "</s>")(tokenizer)
        yield name, tokenizer


def sentencepieces(corpus, size, rule):
    yield "unigram", train_sentencepiece(corpus, size, model_type="unigram", character_coverage=0.98, **rule)
    yield "unigram_bytes", train_sentencepiece(corpus, size + 256, model_type="unigram", character_coverage=0.98,
                                               byte_fallback=True, normalization_rule_name="identity")
    yield "bpe_bytes", train_sentencepiece(corpus, size + 256, model_type="bpe", character_coverage=0.98, byte_fallback=True,
                                           normalization_rule_name="identity", remove_extra_whitespaces=False,
                                           user_defined_symbols=["newtoken"])


def encode_all(program, folder, texts):
    data = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    done = subprocess.run([program, str(folder)], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"{folder}: {done.stderr.decode()}")
    numbers, at, answers = memoryview(done.stdout).cast("I"), 0, []
    for _ in texts:
        count = numbers[at]
        if count == 0xFFFFFFFF:
            answers.append([-1])
            at += 2
        else:
            answers.append(list(numbers[at + 1:at + 1 + count]))
            at += 1 + count
    return answers, done.stderr.decode().split("\n")[0]


def compare(program, name, folder, wanted, texts):
    answers, line = encode_all(program, folder, texts)
    wrong = 0
    for text, ids in zip(texts, answers):
        want = wanted(text)
        if ids != want:
            wrong += 1
            if wrong <= 3:
                print(f"# {name}: {ascii(text[:100])}: {ids[:20]}, wanted {want[:20]}")
    print(f"{'not ok' if wrong else 'ok'} - {name} ({line}): {len(texts)} texts, {wrong} differ")
    return wrong


def run(program, count, extra):
    texts, corpus = make_texts(count), make_texts(3000, seed=7)
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        def check(name, file, content, wanted):
            nonlocal wrong
            folder = pathlib.Path(scratch, f"{name}-{file}")
            folder.mkdir()
            folder.joinpath(file).write_bytes(content)
            wrong += compare(program, name, folder, wanted, texts)

        def check_json(name, tokenizer):
            tokenizer = Tokenizer.from_str(tokenizer.to_str())  # its numbers as a file has them
            check(name, "tokenizer.json", tokenizer.to_str().encode(), lambda t: tokenizer.encode(t).ids)

        def check_pieces(name, content):
            processor = sentencepiece.SentencePieceProcessor(model_proto=content)
            check(name + ".model", "spiece.model", content, processor.encode)

        for make in (wordpiece, byte_level, characters_bpe):
            for name, tokenizer in make(corpus, 4000):
                check_json(name, tokenizer)
        if sentencepiece:
            files = dict(sentencepieces(corpus, 6000, {"normalization_rule_name": "nmt_nfkc"}))
            for name, tokenizer in unigrams(files):
                check_json(name, tokenizer)
            for name, content in files.items():
                check_pieces(name, content)
        for path in map(pathlib.Path, extra):
            if path.is_dir():
                tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
                wrong += compare(program, path.name, path, lambda t: tokenizer.encode(t).ids, texts)
            else:
                check_pieces(path.name, path.read_bytes())
    return 1 if wrong else 0


def escape(text):
    return "".join({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(c, c) for c in text)


def write_fixtures(folder):
    corpus = make_texts(200, seed=3)
    texts = ["", "  a  b   c ", "カ\u3099カ ﬁe\u0301 Ａ\u3000\u200bx q q\u0301", " \t "] + [t[:60] for t in make_texts(40, seed=5)]
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write("".join(f"{a}\t{b}\n" for a, b in (("FB01", "66 69"), ("3000", "20"), ("A0", "20"), ("9", "20"), ("A", "20"), ("2460", "31"),
                                                       ("65 301", "E9"), ("41", "61"), ("200B", ""), ("30AB 3099", "30AC"), ("30AB", "30CF"), ("71", "6B"), ("71 301", "EB"))))
        rules.flush()
        files = dict(sentencepieces(corpus, 640, {"normalization_rule_tsv": rules.name}))
    made = [*wordpiece(corpus, 300), *byte_level(corpus, 540), *characters_bpe(corpus, 100), *unigrams(files)]
    kept = ("bert", "cased", "clip", "roberta", "gemma", "first", "prefix", "unigram")

    def write(name, file, content, wanted):
        path = pathlib.Path(folder, name)
        path.mkdir(parents=True, exist_ok=True)
        path.joinpath(file).write_bytes(content)
        path.joinpath("expected.txt").write_text("".join(f"{' '.join(map(str, wanted(t)))}\t{escape(t)}\n" for t in texts))

    for name, tokenizer in ((n, t) for n, t in made if n in kept):
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        write(name, "tokenizer.json", tokenizer.to_str().encode(), lambda t: tokenizer.encode(t).ids)
    for name, content in files.items():
        write(name + "_model", "spiece.model", content, sentencepiece.SentencePieceProcessor(model_proto=content).encode)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixtures")
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("encode", nargs="?")
    parser.add_argument("extra", nargs="*")
    arguments = parser.parse_args()
    return write_fixtures(arguments.fixtures) if arguments.fixtures else run(arguments.encode, arguments.count, arguments.extra)


if __name__ == "__main__":
    sys.exit(main())
