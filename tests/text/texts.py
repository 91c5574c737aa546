"""Texts in many scripts for tests of tokenizers: sentences made of words of 26 scripts, emoji, combining marks, odd
blanks, punctuation, and random characters. The same seed makes the same texts."""
import random
import unicodedata

WORDS = {
    "latin": "The quick brown fox jumps over a lazy dog naïve café Zürich Øre Łódź İstanbul straße don't we'll it's I'M "
             "you're ﬁnance ﬂow Ǆungla résumé Ångström coöperate ΔT Ⅷ ½ №5 x² H₂O ① Ⓐ ｆｕｌｌ",
    "greek": "Ο γρήγορος Όλυμπος ΟΔΥΣΣΕΥΣ ήρως άνθρωπος ᾳ ἀρχὴ",
    "cyrillic": "Быстрая коричневая лиса прыгает ёжик Їжак й Ђорђе Ѣ",
    "armenian": "Արագ շագանակագույն աղվեսը և",
    "georgian": "სწრაფი ყავისფერი მელა Ძველი ᲥᲐᲠᲗᲣᲚᲘ",
    "hebrew": "השועל החום המהיר שָׁלוֹם עֲלֵיכֶם",
    "arabic": "الثعلب البني السريع السَّلامُ عَلَيْكُمْ ﻻ ﷺ پارسی ٤٢",
    "devanagari": "तेज़ भूरी लोमड़ी क़ख़ क्षत्रिय ज्ञान हिन्दी १२३",
    "bengali": "দ্রুত বাদামী শিয়াল ক্ষ ড়",
    "gurmukhi": "ਤੇਜ਼ ਭੂਰੀ ਲੂੰਬੜੀ",
    "tamil": "விரைவான பழுப்பு நரி கொ",
    "telugu": "త్వరిత గోధుమ నక్క",
    "kannada": "ತ್ವರಿತ ಕಂದು ನರಿ",
    "malayalam": "വേഗതയേറിയ തവിട്ട് കുറുക്കൻ",
    "sinhala": "ඉක්මන් දුඹුරු නරියා ශ්‍රී",
    "thai": "สุนัขจิ้งจอกสีน้ำตาล กำลัง ๑๒",
    "lao": "ໝາຈອກ ສີນ້ຳຕານ",
    "khmer": "កញ្ជ្រោងពណ៌ត្នោត",
    "myanmar": "လျင်မြန်သော အညိုရောင် မြေခွေး",
    "tibetan": "བོད་སྐད་ ཨོཾ་མ་ཎི་",
    "ethiopic": "ፈጣን ቡናማ ቀበሮ ፩",
    "han": "敏捷的棕色狐狸 跳過懶狗 漢字 豈 㐀 𠀀 𪜶 々 〇",
    "kana": "すばやい ちゃいろの きつね ガギグ ｶﾞｷﾞ ㌔ ㍻ ー",
    "hangul": "빠른 갈색 여우 ᄀᆞᆨ 각 ㄱㄴ",
    "mongolian": "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ",
    "cherokee": "ᏣᎳᎩ ꮳꮃꭹ",
    "emoji": "😀 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ 🏳️‍🌈 1️⃣ 🫠 ☃ ✈︎",
    "math": "𝐀𝑏𝓒 ∑ ∫ ≠ ≮ Ω Å ℃ ﬀ ĳ ª º µ",
}
MARKS = "\u0301\u0300\u0308\u0323\u0327\u0338\u20dd\u0345\u1ab0\u064e\u05b7\u3099\u309a\u093c"
BLANKS = " \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000\u200b\u200c\u200d\u2060\ufeff\u180e"
SIGNS = ".,;:!?'\"-–—…()[]{}<>|\\/@#$%^&*_+=~`«»“”‘’„·•¿¡§¶†‡€£¥₹°©®™،؛؟。、「」・।॥፡።᠃᠈‿⁀￥"
SPECIAL = ["[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>", "<|startoftext|>",
           "<0x41>", "▁", "##s", "</w>", "Ġ", "[cls]", "newtoken", "New Token", "extra"]


# Unicode versions of the libraries differ: random characters are old ones whose category has never changed.
def settled():
    old = unicodedata.ucd_3_2_0
    return [c for c in range(1, 0x323B0) if old.category(chr(c)) == unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]


def make_texts(count, seed=1):
    rng = random.Random(seed)
    words = [w for line in WORDS.values() for w in line.split()]
    scripts = [line.split() for line in WORDS.values()]
    chars = settled()

    def word():
        kind = rng.random()
        if kind < 0.80:
            text = rng.choice(script if rng.random() < 0.9 else words)
        elif kind < 0.84:
            text = "".join(chr(rng.choice(chars)) for _ in range(rng.randint(1, 6)))
        elif kind < 0.88:
            text = str(rng.randint(0, 10 ** rng.randint(1, 12)))
        elif kind < 0.94:
            text = "".join(rng.choice(SIGNS) for _ in range(rng.randint(1, 4)))
        elif kind < 0.96:
            text = rng.choice(SPECIAL)
        else:
            text = rng.choice("abcXYZ") * rng.randint(1, 130)
        if rng.random() < 0.06:
            at = rng.randint(0, len(text))
            text = text[:at] + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 3))) + text[at:]
        if rng.random() < 0.1:
            text = rng.choice([str.upper, str.lower, str.title, lambda t: unicodedata.normalize("NFD", t)])(text)
        return text

    texts = []
    for _ in range(count):
        script = rng.choice(scripts)
        parts = []
        for _ in range(min(60, int(rng.expovariate(0.12)) + 1)):
            parts.append(word())
            parts.append(" " if rng.random() < 0.75 else "" if rng.random() < 0.5 else
                         "".join(rng.choice(BLANKS) for _ in range(rng.randint(1, 4))))
        texts.append("".join(parts[:-1] if rng.random() < 0.7 else parts))
    return texts
